"""The reward `harbor`: runs a task's `tests/test.sh`, and reads the reward file that it writes."""

from __future__ import annotations

import inspect
import json
import math
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from agentrl.integrations.harbor import no_installs
from agentrl.integrations.harbor.config import TaskToml, read_task_toml, resolved
from agentrl.integrations.harbor.programs import NOT_STARTED, owed, program_in
from agentrl.integrations.harbor.tool import folder_of, prepare
from agentrl.rewards.declare import Scored, reward
from agentrl.rewards.functions.state import end_programs_of
from agentrl.types.errors import TaskError
from agentrl.types.sandbox import Sandbox, SandboxLost
from agentrl.types.task import Task

LOGS = "/logs/verifier"
_LARGEST = 1 << 20  # bytes of a reward file
_GUARD = {"PYTHONNOUSERSITE": "1", "PYTHONSAFEPATH": "1", "PYTHONDONTWRITEBYTECODE": "1", "HOME": "/tmp/verifier-home"}


@reward(source="Harbor 0.24 (shared and separate verifiers)", costs=["sandbox"])
async def harbor(
    task: Task,
    sandbox: Sandbox,
    open_sandbox: Callable[[], Awaitable[Sandbox]],
    *,
    key: str = "reward",
    end_programs: bool = True,
    guard: bool = True,
    offline: bool = False,
) -> Scored:
    """The reward that the task's verifier writes to `/logs/verifier`: `reward.json` (a number or object), or `.txt`.

    First the programs of the agent are ended, and whatever lies in `/tests` and `/logs/verifier` is removed, so that
    nothing that the agent put there counts. A task with `environment_mode = "separate"` is verified in a fresh sandbox,
    which gets its artifacts and nothing else of the agent's. 0 if the verifier writes no reward; the note says why.

    A verifier that ends with 126 or 127, because a program is missing, has measured nothing if it does so in a fresh
    sandbox of the task, too, and the program is none that the task asks for: no reward, but an error.

    Args:
        key: of the object in `reward.json`; one with a single entry needs none. The other entries are in the note.
        end_programs: false for tasks whose verifier speaks to a program that the agent started.
        guard: starts Python without the agent's user site, home and current folder; programs that it starts have it.
        offline: for `test.sh` that installs pytest before it runs it: installers (`apt-get`, `curl`, `pip`, `uv`) do
            nothing, and what `uvx` and `uv run` were to run, such as pytest, is that of the image.

    Raises:
        TaskError: the reward has several entries and none of this key; or the verifier lacks a program.
    """
    folder = folder_of(task)
    config = read_task_toml(folder)
    apart = config.verifier.environment_mode == "separate"
    for hook in config.verifier.collect:
        done = await sandbox.exec(["sh", "-c", hook.command], timeout_s=hook.timeout_sec)
        if not done.ok:
            return Scored(0.0, f"collect hook {hook.command[:80]!r}: {done.outcome}: {done.text[-200:]}")
    if end_programs and not await end_programs_of(sandbox):
        return Scored(0.0, "the agent's programs could not be ended")
    judge = sandbox
    if apart:
        judge = await open_sandbox()
        await prepare(task, judge)
        if problem := await _carry(config, sandbox, judge):
            return Scored(0.0, problem)
    verify = partial(_verify, folder, config, key=key, guard=guard, offline=offline)
    found = await verify(judge)
    if isinstance(found, Scored):
        return found
    if owed(found.program, folder, sandbox.spec):
        return Scored(0.0, f"{found.program} is missing, which the agent was to make; {found.said}")
    fresh = await open_sandbox()
    await prepare(task, fresh)
    untouched = await verify(fresh)
    if isinstance(untouched, Scored) or (untouched.code, untouched.program) != (found.code, found.program):
        return Scored(0.0, f"it lacks a program only after the agent's work; {found.said}")
    raise TaskError(
        f"its verifier lacks {found.program or 'a program'}: {found.said}",
        place=f"task {task.id!r}",
        remedy="use an image that has it (tasks.args.image), or leave the task out (tasks.exclude)",
    )


@dataclass(frozen=True)
class Missing:
    """A verifier that could not start a program, so that it measured nothing.

    Attributes:
        code: the exit code.
        program: as the shell names it; "" if it does not.
        said: what it wrote, for the note.
    """

    code: int
    program: str
    said: str


async def _verify(
    folder: Path, config: TaskToml, sandbox: Sandbox, *, key: str, guard: bool, offline: bool
) -> Scored | Missing:
    clear = f"chmod -R u+rwx /tests {LOGS} 2>/dev/null; rm -rf /tests/* /tests/.[!.]* {LOGS} /tmp/verifier-home"
    cleared = await sandbox.exec(["sh", "-c", f"{clear}; mkdir -p {LOGS} /logs/artifacts /tmp/verifier-home"])
    left = await sandbox.exec(["sh", "-c", f"ls -A /tests {LOGS} | grep -v ':$'"])
    if not cleared.ok or left.text.strip():
        return Scored(0.0, f"/tests and {LOGS} could not be cleared: {(cleared.text + left.text)[-200:]}")
    await sandbox.put(folder / "tests", "/tests")
    env = resolved(config.verifier.env, f"{folder}/task.toml: verifier.env")
    env = (await _guarded(sandbox) if guard else {}) | env
    if offline:
        env |= await _without_installers(sandbox)
    done = await sandbox.exec(["bash", "/tests/test.sh"], env=env, timeout_s=config.verifier.timeout_sec)
    said = f"test.sh: {done.outcome}, code {done.code}: {done.text[-600:].strip()}"
    if done.outcome == "timeout":
        return Scored(0.0, said)
    if done.code in NOT_STARTED:
        return Missing(done.code, program_in(done.text), said)
    try:
        return _read(await _file(sandbox, "reward.json"), await _file(sandbox, "reward.txt"), key, said)
    except ValueError as error:
        return Scored(0.0, f"{error}; {said}")


async def _guarded(sandbox: Sandbox) -> dict[str, str]:
    """Variables that keep the agent's folders away from the Python that verifies, and not from what it starts."""
    folder = "/tmp/verifier-home/guard"
    await sandbox.write(f"{folder}/sitecustomize.py", _SITE)
    path = ":".join(filter(None, (folder, sandbox.spec.env.get("PYTHONPATH"))))
    return {**_GUARD, "PYTHONPATH": path}


# The first Python leaves its current folder out. A script of /tests has its own folder, and children are as ever.
_SITE = """import os, sys
if os.environ.pop("PYTHONSAFEPATH", ""):
    script = next((word for word in getattr(sys, "orig_argv", [])[1:] if not word.startswith("-")), "")
    folder = os.path.dirname(os.path.realpath(script))
    if script.endswith(".py") and (folder + "/").startswith("/tests/"):
        sys.path.insert(0, folder)
"""


async def _without_installers(sandbox: Sandbox) -> dict[str, str]:
    """Puts programs that install nothing before the others; the variables that name their folder."""
    folder = "/tmp/verifier-home/.local/bin"
    found = await sandbox.exec(["sh", "-c", "echo $PATH; command -v python3"])
    path, _, python = found.text.strip().partition("\n")
    run = f"exec {python} -I {folder}/no_installs.py"
    programs = {name: "" for name in INSTALLERS}
    programs |= {name: f'{run} {name} "$@"' for name in ("uv", "uvx", "pytest")}
    programs |= {name: _PYTHON.format(run=run, python=python) for name in ("python", "python3")}
    for name, text in programs.items():
        await sandbox.write(f"{folder}/{name}", f"#!/bin/sh\n{text}\n", mode=0o755)
    await sandbox.write(f"{folder}/no_installs.py", inspect.getsource(no_installs))
    await sandbox.write(f"{folder}/env", "")
    return {"HOME": "/tmp/verifier-home", "PATH": f"{folder}:{path}"}


INSTALLERS = ("apt-get", "apt", "curl", "wget", "pip", "pip3", "npm")
_PYTHON = """case "$1 $2" in
"-m pip" | "-m ensurepip" | "-m uv" | "-m pytest") {run} python "$@" ;;
*) exec {python} "$@" ;;
esac"""


async def _file(sandbox: Sandbox, name: str) -> str | None:
    try:
        return (await sandbox.read(f"{LOGS}/{name}", limit=_LARGEST)).decode("utf-8", "replace")
    except SandboxLost:
        raise
    except OSError:
        return None


def _read(of_json: str | None, of_text: str | None, key: str, said: str) -> Scored:
    """The reward of the files' content.

    Raises:
        ValueError: there is none.
        TaskError: it has several entries and none of this key.
    """
    if of_json is None:
        if of_text is None:
            raise ValueError("the verifier wrote no reward file")
        return Scored(_number(of_text.strip()), said)
    held = json.loads(of_json)
    if not isinstance(held, dict):
        return Scored(_number(held), said)
    if key not in held and len(held) != 1:
        raise TaskError(
            f"{LOGS}/reward.json has no {key!r}, but {', '.join(held) or 'nothing'}",
            place="rewards.harbor.key",
            remedy="set key to one of them, or add a component for each: {use: harbor, key: NAME}",
        )
    value = held[key] if key in held else next(iter(held.values()))
    return Scored(_number(value), f"{json.dumps(held)[:300]}; {said}")


def _number(held: Any) -> float:
    number = float(held)
    if not math.isfinite(number):
        raise ValueError(f"the reward is {held}")
    return number


async def _carry(config: TaskToml, sandbox: Sandbox, judge: Sandbox) -> str:
    """Copies the artifacts to the same places of another sandbox; what went wrong, or nothing."""
    for source in ("/logs/artifacts", *(each.source for each in config.artifacts)):
        at = source if source.startswith("/") else f"{sandbox.spec.workdir}/{source}"
        kind = (
            await sandbox.exec(["sh", "-c", f"test -d '{at}' && echo folder || {{ test -e '{at}' && echo file; }}"])
        ).text
        if not kind.strip():
            continue  # the verifier finds it missing
        with tempfile.TemporaryDirectory() as made:
            try:
                await sandbox.get(at, Path(made))
                await judge.put(Path(made), at if kind.strip() == "folder" else at.rpartition("/")[0] or "/")
            except SandboxLost:
                raise
            except OSError as error:
                return f"the artifact {source} cannot be copied: {error}"
    return ""
