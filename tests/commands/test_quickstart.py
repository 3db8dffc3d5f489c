"""The quickstart, made small: real folders, a real shell in the sandbox, and a policy that learns."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import pytest

from agentrl.store.run_dir import RunDir
from tests.command import agentrl, sets
from tests.sound import assert_sound

pytestmark = pytest.mark.slow

SMALL = [
    "tasks.args.mazes=1", "tasks.args.size=3", "tasks.args.extra_doors=1", "tasks.args.distance=2",
    "agent.max_turns=6", "train.iterations=4", "train.groups=3", "train.lr=3.0e-3", "eval.episodes=24",
    "warm_start.episodes=32", "warm_start.steps=100", "warm_start.lr=3.0e-3", "model.scratch.vocab_size=340",
]  # fmt: skip


def test_the_oracle_finds_every_flag(tmp_path: Path) -> None:
    agentrl("rollout", "quickstart", "--n", "16", "--script", "oracle", "--out", "run", cwd=tmp_path)
    with RunDir.read(tmp_path / "run") as run:
        episodes = list(run.episodes())
    assert {episode.reward for episode in episodes} == {1.0}
    for episode in episodes:
        # The states are folders that the shell really stood in, one after another through doors of the maze.
        states = [turn.state for turn in episode.turns]
        doors = episode.task.data["doors"]
        assert states[0] == episode.task.data["start"]
        assert all(b in doors[a].values() for a, b in itertools.pairwise(states))


def test_it_learns(tmp_path: Path) -> None:
    printed = agentrl("quickstart", "--out", "run", *sets(*SMALL), cwd=tmp_path).stdout
    with RunDir.read(tmp_path / "run") as run:
        before, after = (m["success"] for m in run.metrics() if m["split"] == "eval")
        calls = [call for e in run.episodes(split="train") for turn in e.turns for call in turn.calls]
        assert run.info["finished"]
    assert after >= before + 0.25, (before, after)
    assert sum(call.outcome == "ok" for call in calls) > 0.9 * len(calls)
    assert re.search(r"Solved at temperature 1, fresh samples: \d+% -> \d+%", printed)
    assert "before: maze" in printed
    assert "after: maze" in printed
    assert "run/curve.png" in printed
    assert_sound(tmp_path / "run")
    told = json.loads(agentrl("quickstart", "--out", "run", *sets(*SMALL), "--json", cwd=tmp_path).stdout)
    assert (told["before"]["success"], told["after"]["success"]) == (before, after), (
        "the same run: nothing is left to do"
    )
