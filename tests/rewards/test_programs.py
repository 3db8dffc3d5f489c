"""Exit codes 126 and 127: no measure where the untouched image lacks a program that the task names, else 0."""

from __future__ import annotations

from typing import Any, cast

import pytest

from agentrl.rewards import RewardSet, programs
from agentrl.rewards.programs import called_in
from agentrl.types.sandbox import ExecResult, Health, Sandbox, SandboxImageUnusable, SandboxSpec
from agentrl.types.task import Task
from tests.rewards.make import make_episode, turn


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("make test", ["make"]),
        ("cd /app && npm test", ["cd", "npm"]),
        ("A=1 B=2 cargo test | tee log; exit", ["cargo", "tee", "exit"]),
        ("./run.sh", []),
        ("/opt/x/run --all", []),
        ("if true; then node a.js; fi", ["true", "node", "fi"]),
        ("solution.py", []),
        ("", []),
    ],
)
def test_programs_that_a_command_names(command: str, names: list[str]) -> None:
    assert called_in(command) == names


class Box:
    """A sandbox whose programs all end with a code, in an image that has some."""

    def __init__(self, code: int, has: set[str], said: bytes = b"") -> None:
        self.code, self.has, self.said, self.looked = code, has, said, list[str]()
        self.spec = SandboxSpec()

    async def exec(self, command: Any, **settings: Any) -> ExecResult:
        if command[-1].startswith("command -v "):
            self.looked.append(command[-1].split()[-1])
            return ExecResult(0 if self.looked[-1] in self.has else 1, "ok")
        if "kill -9 -1" in command:
            return ExecResult(0, "ok")
        return ExecResult(self.code, "nonzero", stderr=self.said)

    async def health(self) -> Health:
        return Health(alive=True, processes=1)

    def cpu_s(self) -> float | None:
        return None

    async def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("code", "has", "command", "asked", "void"),
    [
        (127, set(), "make test", "Repair it.", True),
        (126, {"cd"}, "cd /app && npm test", "Repair it.", True),
        (127, {"make"}, "make test", "Repair it.", False),  # the agent's makefile calls what is not there
        (127, set(), "greet you", "Write a program greet.", False),  # it is what the agent owes
        (127, set(), "./run.sh", "Repair it.", False),
        (1, set(), "make test", "Repair it.", False),
    ],
)
async def test_what_the_image_lacks_is_no_measure(
    code: int, has: set[str], command: str, asked: str, void: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "_KNOWN", {})
    box = Box(code, has, said=b"bash: line 1: xyzzy: command not found\n")  # as an agent may write
    task = Task.of("t", asked, state=[{"command": command, "exit": 0}])

    async def fresh() -> Sandbox:
        return cast(Sandbox, box)

    rewards = RewardSet.from_recipe({"state_check": {}})
    for _ in range(2):
        if void:
            with pytest.raises(SandboxImageUnusable, match="the image has no "):
                await rewards.score(task, make_episode(task, turn()), cast(Sandbox, box), fresh)
        else:
            assert (await rewards.score(task, make_episode(task, turn()), cast(Sandbox, box), fresh)).total == 0.0
    assert "xyzzy" not in box.looked
    assert len(box.looked) == len(set(box.looked)), "each is looked for once per image"
