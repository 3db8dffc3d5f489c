"""Tests of code, run where the agent could not have prepared anything."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from agentrl.episode.record import Episode
from agentrl.errors import RecipeError, TaskError
from agentrl.rewards.declare import Scored, reward
from agentrl.rewards.verifiers import code_in
from agentrl.task import Task

if TYPE_CHECKING:
    from agentrl.sandbox.contract import ExecResult, Sandbox

SOLUTION = "solution.py"


@reward(costs=["sandbox"])
async def code_tests(
    task: Task,
    episode: Episode,
    fresh_sandbox: Sandbox,
    sandbox: Sandbox | None = None,
    *,
    key: str = "tests",
    files: list[str] | None = None,
    partial: bool = False,
    timeout_s: float = 10.0,
) -> float | Scored:
    """Whether the code passes its tests (1 or 0), or with `partial` the share of the tests that it passes.

    The tests run in a fresh sandbox: what the agent installed, patched or left running in its own has no part in it.
    They are written AFTER the agent's files, so that a file of the same name is restored. `task.data[key]` is one of

    - a list of `{input, output}`: the code is a program; its stdout must equal `output` but for space at line ends.
    - a list of texts: Python statements that run after the code, each in a process of its own (`assert f(2) == 4`).
      The process must get past them, not only exit with 0. They share a process with the code, which could look for
      them there; a policy that learns to do that needs tests of the other two kinds.
    - `{files: {path: text}, command: ...}`: the files are written, the command must exit with 0.

    Args:
        files: paths that are taken from the agent's sandbox. Without it the code is the answer (its last fenced block).
        timeout_s: for one test, or for the command.

    Raises:
        TaskError: no tests, or tests of another form.
        RecipeError: `files` without a sandbox of the agent.
    """
    tests = _tests(task, key)
    if files:
        if sandbox is None:
            raise RecipeError("code_tests takes files from the agent's sandbox, and there is none", place="rewards")
        for path in files:
            try:
                await fresh_sandbox.write(path, await sandbox.read(path))
            except FileNotFoundError:
                return Scored(0.0, f"the agent left no {path}")
    elif episode.answer is None:
        return 0.0
    else:
        await fresh_sandbox.write(SOLUTION, code_in(episode.answer))
    if isinstance(tests, Mapping):
        for path, text in tests["files"].items():
            await fresh_sandbox.write(path, text)
        result = await fresh_sandbox.exec(tests["command"], timeout_s=timeout_s)
        return Scored(float(result.ok), "" if result.ok else _tail(result))
    entry = files[0] if files else SOLUTION
    failed: list[str] = []
    for number, test in enumerate(tests):
        result, passed = await _run(fresh_sandbox, entry, test, timeout_s)
        if not passed:
            failed.append(f"test {number}: {_tail(result)}")
            if not partial:
                return Scored(0.0, failed[0])
    return Scored(1.0 - len(failed) / len(tests), "; ".join(failed[:3]))


async def _run(sandbox: Sandbox, entry: str, test: Any, timeout_s: float) -> tuple[ExecResult, bool]:
    if isinstance(test, Mapping):
        result = await sandbox.exec(["python3", entry], stdin=str(test["input"]).encode(), timeout_s=timeout_s)
        return result, result.ok and _lines(result.stdout.decode("utf-8", "replace")) == _lines(str(test["output"]))
    # Reaching the end is proven by a word that the code cannot know beforehand: exit(0) does not print it.
    word = secrets.token_hex(16)
    program = (
        f"names = {{'__name__': 'solution'}}\n"
        f"exec(compile(open({entry!r}).read(), {entry!r}, 'exec'), names)\n"
        f"exec(compile({test!r}, 'test', 'exec'), names)\n"
        f"print({word!r})\n"
    )
    result = await sandbox.exec(["python3", "-"], stdin=program.encode(), timeout_s=timeout_s)
    return result, result.ok and result.stdout.rstrip().endswith(word.encode())


def _tests(task: Task, key: str) -> Any:
    tests = task.data.get(key)
    shapes = (
        isinstance(tests, list)
        and tests
        and all(
            isinstance(test, str) or (isinstance(test, Mapping) and {"input", "output"} <= set(test)) for test in tests
        )
    )
    if shapes or (isinstance(tests, Mapping) and isinstance(tests.get("files"), Mapping) and "command" in tests):
        return tests
    raise TaskError(
        f"tests {key!r} are {tests!r}" if key in task.data else f"no tests: data has no {key!r}",
        place=f"task {task.id}",
        remedy="give a list of texts or of {input, output}, or {files, command}",
    )


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


def _tail(result: ExecResult) -> str:
    lines = result.text.strip().splitlines()
    return f"{result.outcome}{f': {lines[-1][:200]}' if lines else ''}"
