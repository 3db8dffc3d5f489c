"""Checks of the state that an episode left behind."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from agentrl.rewards.checker import Checker
from agentrl.rewards.declare import Scored, reward
from agentrl.rewards.grading import budget
from agentrl.rewards.isolation import job_of, passes
from agentrl.rewards.programs import check_started
from agentrl.sandbox.helper import TooMuch
from agentrl.types.errors import TaskError
from agentrl.types.task import Task

if TYPE_CHECKING:
    from agentrl.types.sandbox import ExecResult, Sandbox

_TEXT: dict[str, Callable[[str, str], bool]] = {
    "equals": lambda text, wanted: text == wanted.strip(),
    "contains": lambda text, wanted: wanted in text,
}
_KINDS = (*_TEXT, "matches", "absent", "exit", "stdout")
_LARGEST = 16 << 20  # size limit of a checked file, in bytes
_MATCH_S = 5.0  # CPU time of a regular expression, which runs on data of the agent


@reward(costs=["sandbox"], bounds=(0, 1))
async def state_check(
    task: Task,
    sandbox: Sandbox,
    open_sandbox: Callable[[], Awaitable[Sandbox]] | None = None,
    *,
    key: str = "state",
    end_programs: bool = True,
    partial: bool = False,
    timeout_s: float = 30.0,
) -> float | Scored:
    """1 if all checks of the sandbox hold, else 0; with `partial` the share of the checks that hold.

    `task.data[key]` is a list of `{file: PATH, equals | contains | matches: TEXT}` (space at the ends is ignored;
    `matches` is a regular expression), `{file: PATH, absent: true}`, or
    `{command: TEXT, exit: 0, stdout: TEXT}`. All programs of the agent are ended first. Commands run in the agent's
    sandbox, where it may have replaced programs: prefer files, or `code_tests` with its fresh sandboxes. A command that
    is pytest, unittest or a Python script (as in `code_tests`) and should exit with 0 must also prove that it ran to
    the end. It starts without the agent's `sitecustomize`, `usercustomize` and modules.

    Args:
        end_programs: false for checks of a service that the agent started: it may then interfere with the commands.
        timeout_s: processor time for one command; five times as much wall time.

    Raises:
        TaskError: no checks, a check of another form, or a pattern that is not a regular expression.
        SandboxImageUnusable: the image lacks a program that a command names.
    """
    checks = task.data.get(key)
    if not isinstance(checks, list) or not checks:
        raise TaskError(f"no state checks: {key!r} is {checks!r}", place=f"task {task.id}", remedy="give a list")
    if end_programs and not await end_programs_of(sandbox):
        return Scored(0.0, "the agent's programs could not be ended")
    failed = []
    for number, check in enumerate(checks):
        if not isinstance(check, Mapping) or not ({"file", "command"} & set(check)) or not set(check) & set(_KINDS):
            raise TaskError(
                f"{key}[{number}] is {check!r}",
                place=f"task {task.id}",
                remedy=f"file or command, and one of {', '.join(_KINDS)}",
            )
        _check_pattern(check, f"task {task.id}: {key}[{number}]")
        if "file" in check:
            problem = await _file(sandbox, check)
        else:
            problem, result = await _command(sandbox, check, timeout_s)
            if problem and isinstance(check["command"], str) and open_sandbox is not None:
                await check_started(result, check["command"], task, sandbox.spec, open_sandbox)
        if problem:
            failed.append(f"check {number}: {problem}")
            if not partial:
                break
    share = 1.0 - len(failed) / len(checks) if partial else float(not failed)
    return Scored(share, "; ".join(failed[:3]))


def _check_pattern(check: Mapping[str, Any], place: str) -> None:
    try:
        re.compile(str(check.get("matches", "")))
    except re.error as error:
        raise TaskError(f"{check['matches']!r} is not a regular expression: {error}", place=place) from None


async def _file(sandbox: Sandbox, check: Mapping[str, Any]) -> str:
    try:
        text = (await sandbox.read(check["file"], limit=_LARGEST)).decode("utf-8", "replace").strip()
    except (FileNotFoundError, NotADirectoryError):
        return "" if check.get("absent") else f"there is no {check['file']}"
    except OSError as error:
        return f"{check['file']}: {error.strerror or error}"
    if check.get("absent"):
        return f"{check['file']} is there"
    wrong = [kind for kind, holds in _TEXT.items() if kind in check and not holds(text, str(check[kind]))]
    if wrong:
        return f"{check['file']}: not {wrong[0]} {check[wrong[0]]!r}"
    try:
        if "matches" not in check or await _HELPER.ask(matches, str(check["matches"]), text, cpu_s=_MATCH_S):
            return ""
        return f"{check['file']}: not matches {check['matches']!r}"
    except TooMuch as problem:
        return f"{check['file']}: {problem}"


def matches(pattern: str, text: str) -> bool:
    """Returns True if the pattern is found in the text. Runs in a helper process."""
    return re.search(pattern, text) is not None


_HELPER = Checker("agentrl.rewards.functions.state")


async def _command(sandbox: Sandbox, check: Mapping[str, Any], timeout_s: float) -> tuple[str, ExecResult]:
    command, code = check["command"], check.get("exit", 0)
    job = job_of(command) if isinstance(command, str) and code == 0 else None
    if job is not None and not (job["kind"] == "script" and "stdout" in check):
        result, passed = await passes(sandbox, job, timeout_s, isolated=True)
        if not passed:
            return f"{command}: not passed ({result.outcome})", result
    else:
        result = await budget().exec(sandbox, command, env={"PYTHONNOUSERSITE": "1"}, timeout_s=timeout_s)
        if result.code != code:
            return f"{command}: exit code {result.code}", result
    said = result.stdout.decode("utf-8", "replace").strip()
    wrong = "stdout" in check and said != str(check["stdout"]).strip()
    return f"{command}: printed {said[:80]!r}" if wrong else "", result


async def end_programs_of(sandbox: Sandbox) -> bool:
    """Kills all programs inside but the toolbox; whether none is left. A signal to all leaves no time to fork."""
    for _ in range(20):
        await sandbox.exec(["sh", "-c", "kill -9 -1"], cwd="/", timeout_s=10)  # the workdir may be closed to it
        if (await sandbox.health()).processes in (1, None):
            return True
        await asyncio.sleep(0.01)
    return False
