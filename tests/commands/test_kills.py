"""Trainings that are killed by -9 and go on: with a voice, a program, several contexts, two policies that train beside
earlier selves, and from recorded episodes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentrl.store.run_dir import RunDir
from tests.command import python
from tests.commands import test_two_policies as duet
from tests.counting import CANARY, metrics
from tests.distributed.test_worker_programs import AGENTS, RECIPE, folder
from tests.sound import assert_sound

pytestmark = pytest.mark.slow

__all__ = ["folder"]

TALK = """
from agentrl import Environment

class Talk(Environment):
    def open(self, task, sandbox): self.heard = 0
    def respond(self, reply):
        self.heard += 1
        return "Go on." if self.heard < 3 else None
"""
RECIPES: dict[str, dict[str, Any]] = AGENTS | {
    "contexts": {"agent": {"use": "compacting_agent", "at_tokens": 60, "max_turns": 8}, "tools": ["./task.py:Talk"]}
}
DEATHS = {
    "program": ("rollout:6",),
    "voice": ("rollout:3",),
    "contexts": ("optimiser step:1",),
    "duet": ("rollout:11", "optimiser step:2", "checkpoint write:15"),
    "recorded": ("rollout:2", "metrics:1"),
}
LIVES = """
import json, sys
from tests.commands.lives import death_of, live
for arguments, deaths in json.loads(sys.argv[1]):
    for death in deaths:
        status = live(arguments, death_of(death))
        assert status == 9, (arguments, death, status)
    assert live(arguments, None) == 0, arguments
"""


def lives(folder: Path, *each: tuple[list[str], tuple[str, ...]]) -> None:
    """Runs commands to their end, each killed before after some calls (`POINT:CALL` of lives.py)."""
    python("-c", LIVES, json.dumps(each), cwd=folder)


def test_kills_change_no_number(folder: Path) -> None:
    with (folder / "task.py").open("a") as file:
        file.write(TALK)
    for name, more in RECIPES.items():
        recipe = RECIPE | {"engine": {"batch_invariant": True}, "name": name} | more
        (folder / f"{name}.yaml").write_text(json.dumps(recipe))
    duet.write(folder / "two", policies=duet.POLICIES | {"crowd": {"checkpoint": {"every": 1, "last": 2}}})
    runs = {name: ["train", f"{name}.yaml"] for name in RECIPES}
    runs["duet"] = ["train", "two", "--set", f"model.path={folder / 'two' / 'model'}"]
    runs["recorded"] = ["train", "voice.yaml", "--from", "voice", "--set", "train.old_logprobs=engine"]
    lives(
        folder,
        *(([*run, "--out", name], ()) for name, run in runs.items()),
        *(([*run, "--out", f"{name}-killed"], DEATHS[name]) for name, run in runs.items()),
    )
    for name in runs:
        assert metrics(folder / f"{name}-killed", but_for=CANARY) == metrics(folder / name, but_for=CANARY), name
        assert len(metrics(folder / name)) == 2
        assert_sound(folder / f"{name}-killed")
    with RunDir.read(folder / "contexts-killed") as run:
        assert all(episode.branches for episode in run.episodes())
