"""Training that is killed at every point: nothing is lost, nothing doubled, no bound broken."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from agentrl.store.run_dir import RunDir
from tests.command import agentrl, python
from tests.counting import TINY, metrics
from tests.sound import assert_sound

pytestmark = pytest.mark.slow

TRAINING = f"""\
{TINY}\
train: {{iterations: 12, groups: 2, group_size: 3, minibatch: 6, lr: 1.0e-3}}
eval: {{episodes: 4, every: 4}}
"""
DEATHS = (
    "before weight sync:1", "optimiser step:1", "before checkpoint write:3", "before credit:2", "checkpoint write:12",
    "before metrics:1", "rollout:9", "checkpoint pruning:1", "weight sync:2", "before optimiser step:2", "metrics:1",
)  # fmt: skip
"""Each in a life of its own; every point of lives.py, before or after a call."""


@pytest.fixture
def tiny(counting: Path) -> Path:
    (counting / "recipe.yaml").write_text((counting / "recipe.yaml").read_text() + TRAINING)
    return counting.parent


def lives(here: Path, out: str, *more: str) -> None:
    told = ("-m", "tests.commands.lives", ",".join(DEATHS), "train", "counting", "--out", out)
    assert len(python(*told, *more, cwd=here).stdout.splitlines()) == len(DEATHS)


def test_in_turns_kills_change_no_number(tiny: Path) -> None:
    agentrl("train", "counting", "--out", "whole", cwd=tiny)
    lives(tiny, "killed")
    assert metrics(tiny / "killed") == metrics(tiny / "whole")
    assert_sound(tiny / "killed")


def test_beside_the_trainer_every_episode_trains_once_within_the_bound(tiny: Path) -> None:
    lives(tiny, "killed", "--set", "train.max_staleness=2", "--set", "train.importance={high: 2}",
          "--set", "train.checkpoint_every=2", "--set", "tools=[{use: ./task.py:Counter, delay: 0.03}]")  # fmt: skip
    assert_sound(tiny / "killed")
    with RunDir.read(tiny / "killed") as run:
        episodes = list(run.episodes(split="train"))
        lines = [m for m in run.metrics() if m["split"] == "train"]
        evaluated = [m["iteration"] for m in run.metrics() if m["split"] == "eval"]
        credited = [run.credit(episode.id) for episode in episodes]
        assert run.info["finished"]
    assert [m["iteration"] for m in lines] == [*range(1, 13)]
    assert sorted(evaluated) == [0, 4, 8, 12]
    trained = Counter(group for line in lines for group in line["trained_groups"])
    assert trained == Counter({episode.group_id: 1 for episode in episodes})
    assert set(Counter(episode.group_id for episode in episodes).values()) == {3}
    assert all(credit is not None for credit in credited)
    assert max(m["staleness_max"] for m in lines) <= 2


SLOW_FIRST = """
from agentrl.store.run_dir import RunDir

told, real = [], (RunDir.add, RunDir.add_metrics)
RunDir.add = lambda self, episode: (real[0](self, episode), told.append(episode.id.split("-")[-1]))[0]
RunDir.add_metrics = lambda self, line: (real[1](self, line), told.append(line["split"]))[0]

class SlowFirst(Counter):
    opened = 0
    async def open(self, task, sandbox):
        await super().open(task, sandbox)
        SlowFirst.opened += task.id == "count0"
        while task.id == "count0" and SlowFirst.opened == 2 and (told.count("train") < 2 or "count3#0" not in told[8:]):
            await asyncio.sleep(0.01)
"""
"""The first task waits for two updates and for the third of the other groups; but not in its demonstration."""


def test_an_update_that_is_done_again_trains_on_the_same_groups(tiny: Path) -> None:
    code = tiny / "counting" / "task.py"
    code.write_text(code.read_text() + SLOW_FIRST)
    arguments = ["train", "counting", "--out", "killed"]
    for key in (
        "max_staleness=2",
        "importance={high: 2}",
        "checkpoint_every=9",
        "iterations=4",
        "groups=1",
        "group_size=1",
    ):
        arguments += ["--set", f"train.{key}"]
    arguments += ["--set", "tools=[./task.py:SlowFirst]", "--set", "concurrency=2", "--set", "eval=null"]
    # After 8 demonstrations three groups end, and two train; the slow one ends, and the run is killed.
    script = (
        "import sys; from tests.commands.lives import live; arguments = sys.argv[1:];"
        "assert live(arguments, ('rollout', 8 + 4, True)) == 9; sys.exit(live(arguments, None))"
    )
    python("-c", script, *arguments, cwd=tiny)
    with RunDir.read(tiny / "killed") as run:
        trained = [group for line in run.metrics() for group in line.get("trained_groups", [])]
    assert [group.split("-")[-1] for group in trained] == ["count1", "count2", "count0", "count3"]
