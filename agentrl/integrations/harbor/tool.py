"""The tool `harbor`: prepares the sandbox of a Harbor task, and leads through its steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

from agentrl.chat.formats.parser import Reply
from agentrl.integrations.harbor.config import read_task_toml
from agentrl.integrations.harbor.prepare import folder_of, prepare
from agentrl.integrations.harbor.steps import HarborStep, steps_of
from agentrl.integrations.harbor.verifier import Missing, StepScore, clear, verify_step
from agentrl.rewards.grading import Unverified, graded
from agentrl.sandbox.health import check_answers
from agentrl.tools.base import Environment, Observation, own
from agentrl.types.sandbox import Sandbox, SandboxStartFailed
from agentrl.types.task import Task

_SETUP_S = 300.0
_SPARE_S = 60.0
"""For copies and removals, besides tests and `setup.sh`."""


class Harbor(Environment):
    """Prepares the episode's sandbox. List it before tools that use the sandbox. It offers the model no function.

    A task with `[[steps]]` shows one instruction after the other: when the model ends its turn, the tests of the step
    run, and the next instruction follows. Programs of the agent are ended between steps; files stay.

    Args:
        key: as the setting of the reward `harbor`, for the tests between steps; so are the others.
    """

    needs_sandbox = True  # not stateless: `open` writes files, so that a fork cannot begin with a snapshot

    def __init__(self, key: str = "reward", guard: bool = True, offline: bool = False) -> None:
        self.settings: dict[str, Any] = {"key": key, "guard": guard, "offline": offline}
        self.steps: list[HarborStep] = []
        self.scores: list[float] = []
        self.notes: list[str] = []
        self.missing: dict[str, Missing] = {}
        self.failed = False

    async def open(self, task: Task, sandbox: Sandbox | None) -> None:
        """Copies files and runs commands."""
        self.box = own(sandbox)
        await prepare(task, self.box)
        folder = folder_of(task)
        self.steps, self.scores, self.notes = steps_of(folder, read_task_toml(folder)), [], []
        self.missing, self.failed = {}, False
        if self.steps:
            self.timeout_s = max(self.timeout_s, _SETUP_S + 2 * max(step.timeout_s for step in self.steps) + _SPARE_S)
            await _begin(self.steps[0], self.box)

    async def respond(self, reply: Reply) -> Observation | None:
        """Verifies the step and returns the next instruction.

        None after the last step, below a step's minimum, or if the agent left no place for the next step's files.
        """
        if self.failed or len(self.scores) + 1 >= len(self.steps):
            return None
        step = self.steps[len(self.scores)]
        try:
            verify = partial(verify_step, step, self.box, **self.settings)
            found = await graded(verify, ["sandbox"], [self.box])
        except Unverified as problem:  # as in the reward: the agent cannot void its episode
            found = StepScore(0.0, str(problem))
        if found.missing is not None:
            self.missing[step.name] = found.missing
        self.scores.append(found.value)
        self.notes.append(found.noted(step))
        held = {"reward": found.value, **found.others}
        self.failed = any(held.get(key, 0.0) < least for key, least in step.least.items())
        if self.failed:
            return None
        following = self.steps[len(self.scores)]
        try:
            cleared = await clear(self.box)
            await _begin(following, self.box)
        except (OSError, SandboxStartFailed) as problem:  # the files are the agent's by now
            await check_answers(self.box)
            cleared, said = False, str(problem)
        else:
            said = "tests and reward files of the step before cannot be removed"
        if not cleared:
            self.failed = True
            self.notes.append(f"{following.name}: it cannot begin: {said[:300]}")
            return None
        return Observation(following.instruction)

    async def save(self) -> Any:
        """Returns the scores so far."""
        missing = {name: asdict(each) for name, each in self.missing.items()}
        told = {"scores": self.scores, "notes": self.notes, "missing": missing, "failed": self.failed}
        return told if self.steps else None

    async def restore(self, state: Any) -> None:
        """Restores the scores."""
        if isinstance(state, Mapping):
            self.scores, self.notes = [*state["scores"]], [*state["notes"]]
            self.missing = {name: Missing(**each) for name, each in state.get("missing", {}).items()}
            self.failed = bool(state["failed"])


async def _begin(step: HarborStep, sandbox: Sandbox) -> None:
    """Puts the files of a step into the working folder, and runs its `setup.sh`."""
    if step.files is None:
        return
    try:
        await sandbox.put(step.files, sandbox.spec.workdir)
    except OSError as error:
        raise SandboxStartFailed(f"files of step {step.name}: {error}", place=str(step.files)) from error
    if (step.files / "setup.sh").is_file():
        done = await sandbox.exec("bash setup.sh && rm -f setup.sh", timeout_s=_SETUP_S)
        if not done.ok:
            said = f"setup.sh of step {step.name} ended with {done.outcome}: {done.text[-300:].strip()}"
            raise SandboxStartFailed(said, place=str(step.files))
