"""The reward `harbor`: runs a task's `tests/test.sh` and reads its reward file."""

from __future__ import annotations

import inspect
import json
import secrets
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from agentrl.integrations.harbor import no_installs
from agentrl.integrations.harbor.config import TaskToml, read_task_toml, resolved
from agentrl.integrations.harbor.prepare import folder_of, prepare
from agentrl.integrations.harbor.programs import NOT_STARTED, owed, program_in
from agentrl.integrations.harbor.steps import HarborStep, steps_of
from agentrl.rewards.declare import Scored, reward
from agentrl.rewards.functions.state import end_programs_of
from agentrl.rewards.grading import budget
from agentrl.types.errors import TaskError
from agentrl.types.sandbox import Sandbox, SandboxLost
from agentrl.types.task import Task

LOGS = "/logs/verifier"
MOST = 1000.0
"""Maximum absolute value of an accepted reward."""

_LARGEST = 1 << 20  # bytes of a reward file
_HOME = "/tmp/verifier-"  # of the tests; a random word follows
_GUARD = {"PYTHONNOUSERSITE": "1", "PYTHONSAFEPATH": "1", "PYTHONDONTWRITEBYTECODE": "1"}


@reward(source="Harbor 0.24 (shared and separate verifiers)", costs=["sandbox"])
async def harbor(
    task: Task,
    sandbox: Sandbox,
    open_sandbox: Callable[..., Awaitable[Sandbox]],
    tools: Sequence[Any] = (),
    *,
    key: str = "reward",
    end_programs: bool = True,
    guard: bool = True,
    offline: bool = False,
) -> Scored:
    """Returns the verifier's reward from `/logs/verifier`: `reward.json` (a number or object) or `reward.txt`.

    First ends the agent's programs and clears `/tests` and `/logs/verifier`, so that files planted by the agent do not
    count. A task with `environment_mode = "separate"` is verified in a fresh sandbox that gets only the artifacts: of
    the image of `tests/Dockerfile`, if there is one. The reward is 0 if the verifier writes none; the note gives the
    reason. The agent's code runs with the rights of `test.sh`, so the reward is also 0 if a signal ended `test.sh`, if
    two reward files exist, or if the reward is beyond 1000.

    Of a task with `[[steps]]` it is the mean over all steps, or the last step's (`multi_step_reward_strategy`). A step
    that was not reached counts 0.

    A verifier that exits with 126 or 127 because a program is missing raises an error instead, if it also does so in a
    fresh sandbox and the agent was not asked to provide the program. So do the tests of a step.

    Args:
        key: key of the object in `reward.json`; ignored for a single entry. The note contains the other entries.
        end_programs: false for tasks whose verifier talks to a program started by the agent.
        guard: starts Python without the agent's user site, home and current folder; its child processes have them.
        offline: for a `test.sh` that installs pytest first: installers (`apt-get`, `curl`, `pip`, `uv`) do nothing, and
            `uvx` and `uv run` run the image's program, for example pytest.

    Raises:
        TaskError: a program of the verifier is missing.
    """
    folder = folder_of(task)
    config = read_task_toml(folder)
    if config.steps:
        settings = {"key": key, "guard": guard, "offline": offline}
        return await _of_steps(steps_of(folder, config), config, task, sandbox, open_sandbox, tools, **settings)
    own = task.data["harbor"].get("verifier")

    async def fresh() -> Sandbox:
        if own is not None:
            return await open_sandbox(**own)
        opened = await open_sandbox()
        await prepare(task, opened)
        return opened

    for hook in config.verifier.collect:
        done = await budget().exec(sandbox, ["sh", "-c", hook.command], timeout_s=hook.timeout_sec)
        if not done.ok:
            return Scored(0.0, f"collect hook {hook.command[:80]!r}: {done.outcome}: {done.text[-200:]}")
    if end_programs and not await end_programs_of(sandbox):
        return Scored(0.0, "the agent's programs could not be ended")
    judge = sandbox
    if config.verifier.environment_mode == "separate":
        judge = await fresh()
        if problem := await _carry(config, sandbox, judge):
            return Scored(0.0, problem)
    verify = partial(
        _verify, Verifier.of(folder, config, in_image=own is not None), key=key, guard=guard, offline=offline
    )
    found = await verify(judge)
    if isinstance(found, Scored):
        return found
    if owed(found.program, folder, sandbox.spec):
        return Scored(0.0, f"{found.program} is missing, which the agent was to make; {found.said}")
    untouched = await verify(await fresh())
    if isinstance(untouched, Scored) or (untouched.code, untouched.program) != (found.code, found.program):
        return Scored(0.0, f"it lacks a program only after the agent's work; {found.said}")
    raise _lacks(task, "its verifier", found)


def _lacks(task: Task, who: str, found: Missing) -> TaskError:
    return TaskError(
        f"{who} lacks {found.program or 'a program'}: {found.said}",
        place=f"task {task.id!r}",
        remedy="use an image that has it (tasks.args.image), or leave the task out (tasks.exclude)",
    )


class NoVerdict(Scored):
    """0, because the tests left no valid reward file."""


@dataclass(frozen=True)
class Missing:
    """Result of a verifier that could not start a program.

    Attributes:
        code: exit code.
        program: name reported by the shell; "" if none.
        said: output, for the note.
    """

    code: int
    program: str
    said: str


@dataclass(frozen=True)
class Verifier:
    """Tests of a task or of a step.

    Attributes:
        tests: folders of which the later ones lie over the earlier ones; none: the image holds them.
    """

    tests: tuple[Path, ...]
    timeout_s: float
    env: Mapping[str, str]

    @classmethod
    def of(cls, folder: Path, config: TaskToml, *, in_image: bool = False) -> Verifier:
        """Returns the tests of a task of one step."""
        env = resolved(config.verifier.env, f"{folder}/task.toml: verifier.env")
        return cls(() if in_image else (folder / "tests",), config.verifier.timeout_sec, env)


async def _of_steps(
    steps: Sequence[HarborStep],
    config: TaskToml,
    task: Task,
    sandbox: Sandbox,
    open_sandbox: Callable[..., Awaitable[Sandbox]],
    tools: Sequence[Any],
    **settings: Any,
) -> Scored:
    """Verifies the step that the episode ended in, and adds the scores of those before.

    Raises:
        TaskError: a program of a step's tests is missing.
    """
    leader = next(each for each in tools if hasattr(each, "scores") and hasattr(each, "steps"))
    scores, notes, missing = [*leader.scores], [*leader.notes], {**leader.missing}
    if not leader.failed and len(scores) < len(steps):
        step = steps[len(scores)]
        found = await verify_step(step, sandbox, **settings)
        if found.missing is not None:
            missing[step.name] = found.missing
        scores.append(found.value)
        notes.append(found.noted(step))
    for number, step in enumerate(steps[: len(scores)]):
        if (lacked := missing.get(step.name)) is not None and not any(
            owed(lacked.program, at, sandbox.spec)
            for at in (folder_of(task), *(each.folder for each in steps[: number + 1]))
        ):
            untouched = await open_sandbox()
            await prepare(task, untouched)
            found = await verify_step(step, untouched, **settings)
            again = found.missing
            if again is not None and (again.code, again.program) == (lacked.code, lacked.program):
                raise _lacks(task, f"the verifier of step {step.name!r}", lacked)
    notes += [f"{step.name}: not reached" for step in steps[len(scores) :]]
    if config.multi_step_reward_strategy == "final":
        return Scored(scores[-1] if len(scores) == len(steps) else 0.0, "; ".join(notes))
    return Scored(sum(scores) / len(steps), "; ".join(notes))


@dataclass(frozen=True)
class StepScore:
    """Result of the tests of a step.

    Attributes:
        note: reason for a value of 0.
        others: numbers of its `reward.json`.
        missing: the tests could not start a program.
    """

    value: float
    note: str = ""
    others: Mapping[str, float] = field(default_factory=dict)
    missing: Missing | None = None

    def noted(self, step: HarborStep) -> str:
        """Returns a line for the note of the episode."""
        return f"{step.name}: {self.value:g} ({self.note})" if self.note else f"{step.name}: {self.value:g}"


async def verify_step(step: HarborStep, sandbox: Sandbox, **settings: Any) -> StepScore:
    """Runs the tests of a step."""
    if not await end_programs_of(sandbox):
        return StepScore(0.0, "the agent's programs could not be ended")
    found = await _verify(Verifier(step.tests, step.timeout_s, step.env), sandbox, **settings)
    if isinstance(found, Missing):
        return StepScore(0.0, found.said, missing=found)
    value = found.value
    assert isinstance(value, float)
    others = {} if isinstance(found, NoVerdict) else _numbers(await _file(sandbox, "reward.json"))
    return StepScore(value, "" if value else found.note[-300:], others)


def _numbers(of_json: str | None) -> dict[str, float]:
    """Returns the entries of a `reward.json` that are rewards."""
    held = json.loads(of_json or "{}")
    found = {}
    for name, each in held.items() if isinstance(held, dict) else ():
        with suppress(ValueError):
            found[name] = _number(each)
    return found


async def clear(sandbox: Sandbox) -> bool:
    """Removes tests and reward files; returns True if nothing is left of them."""
    words = (
        f"chmod -R u+rwx /tests {LOGS} {_HOME}* 2>/dev/null; rm -rf /tests/* /tests/.[!.]* {LOGS} {_HOME}*; "
        f"mkdir -p {LOGS}"
    )
    await sandbox.exec(["sh", "-c", words], cwd="/")
    left = await sandbox.exec(["sh", "-c", f"ls -A /tests {LOGS} | grep -v ':$'"], cwd="/")
    return not left.text.strip()


async def _verify(verifier: Verifier, sandbox: Sandbox, *, key: str, guard: bool, offline: bool) -> Scored | Missing:
    home = f"{_HOME}{secrets.token_hex(16)}"  # an unguessable name, so that the agent cannot prepare it
    ours = f"/tests {LOGS}" if verifier.tests else LOGS
    clear = f"chmod -R u+rwx {ours} 2>/dev/null; rm -rf {LOGS}{' /tests/* /tests/.[!.]*' if verifier.tests else ''}"
    cleared = await sandbox.exec(["sh", "-c", f"{clear}; mkdir -p {LOGS} /logs/artifacts && mkdir {home}"], cwd="/")
    left = await sandbox.exec(["sh", "-c", f"ls -A {ours} {home} | grep -v ':$'"], cwd="/")
    if not cleared.ok or left.text.strip():
        return NoVerdict(0.0, f"{ours} could not be cleared: {(cleared.text + left.text)[-200:]}")
    for tests in verifier.tests:
        await sandbox.put(tests, "/tests")
    env = (await _guarded(sandbox, home) if guard else {}) | dict(verifier.env)
    if offline:
        env |= await _without_installers(sandbox, home)
    done = await budget().exec(sandbox, ["bash", "/tests/test.sh"], env=env, timeout_s=verifier.timeout_s)
    said = f"test.sh: {done.outcome}, code {done.code}: {done.text[-600:].strip()}"
    if done.outcome not in ("ok", "nonzero"):  # killed: a reward written before does not count
        return NoVerdict(0.0, said)
    if done.code in NOT_STARTED:
        return Missing(done.code, program_in(done.text), said)
    try:
        return _read(await _file(sandbox, "reward.json"), await _file(sandbox, "reward.txt"), key, said)
    except (ValueError, RecursionError) as error:
        return NoVerdict(0.0, f"{error}; {said}")


async def _guarded(sandbox: Sandbox, home: str) -> dict[str, str]:
    """Returns variables that hide the agent's folders from the verifier's Python, but not from its children."""
    await sandbox.write(f"{home}/guard/sitecustomize.py", _SITE)
    path = ":".join(filter(None, (f"{home}/guard", sandbox.spec.env.get("PYTHONPATH"))))
    return {**_GUARD, "HOME": home, "PYTHONPATH": path}


# The first Python ignores its current folder. Scripts of /tests see their own folder, and children run normally.
_SITE = """import os, sys
if os.environ.pop("PYTHONSAFEPATH", ""):
    script = next((word for word in getattr(sys, "orig_argv", [])[1:] if not word.startswith("-")), "")
    folder = os.path.dirname(os.path.realpath(script))
    if script.endswith(".py") and (folder + "/").startswith("/tests/"):
        sys.path.insert(0, folder)
"""


async def _without_installers(sandbox: Sandbox, home: str) -> dict[str, str]:
    """Puts stubs of installers first on PATH; returns the variables."""
    folder = f"{home}/.local/bin"
    found = await sandbox.exec(["sh", "-c", "echo $PATH; command -v python3"], cwd="/")
    path, _, python = found.text.strip().partition("\n")
    run = f"exec {python} -I {folder}/no_installs.py"
    programs = {name: "" for name in INSTALLERS}
    programs |= {name: f'{run} {name} "$@"' for name in ("uv", "uvx", "pytest")}
    programs |= {name: _PYTHON.format(run=run, python=python) for name in ("python", "python3")}
    for name, text in programs.items():
        await sandbox.write(f"{folder}/{name}", f"#!/bin/sh\n{text}\n", mode=0o755)
    await sandbox.write(f"{folder}/no_installs.py", inspect.getsource(no_installs))
    await sandbox.write(f"{folder}/env", "")
    return {"HOME": home, "PATH": f"{folder}:{path}"}


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
    """Parses the reward files. Either may be forged by the agent's code.

    Raises:
        ValueError: no file or two files exist, or the content is invalid.
    """
    if of_json is not None and of_text is not None:
        raise ValueError("there are two verdicts, reward.json and reward.txt, and a verifier writes one")
    if of_json is None:
        if of_text is None:
            raise ValueError("the verifier wrote no reward file")
        return Scored(_number(_parsed(of_text.strip(), float)), said)
    held = _parsed(of_json, json.loads)
    if not isinstance(held, dict):
        return Scored(_number(held), said)
    if key not in held and len(held) != 1:
        raise ValueError(
            f"reward.json has no {key!r}, but {', '.join(held)[:200] or 'nothing'}: set rewards.harbor.key to one of "
            "them, or add a component for each: {use: harbor, key: NAME}"
        )
    value = held[key] if key in held else next(iter(held.values()))
    return Scored(_number(value), f"{json.dumps(held)[:300]}; {said}")


def _parsed(text: str, read: Callable[[str], Any]) -> Any:
    try:
        return read(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the reward file cannot be read: {str(error)[:100]}") from None


def _number(held: Any) -> float:
    if not isinstance(held, int | float):
        raise ValueError(f"the reward is {json.dumps(held)[:100]}, and no number")
    if not abs(held) <= MOST:  # also rejects NaN
        raise ValueError(f"the reward is no number of at most {MOST:g}")
    return float(held)


async def _carry(config: TaskToml, sandbox: Sandbox, judge: Sandbox) -> str:
    """Copies the artifacts to the same paths of another sandbox; returns an error message or ""."""
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
