"""Training that is killed at twenty random points: nothing is lost, nothing doubled, no bound broken."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from agentrl.store.run_dir import RunDir
from tests.command import agentrl, python

from .test_train import metrics

TRAINING = """\
agent: {format: tags, max_turns: 4, describe_tools: false}
model: {scratch: {hidden: 16, layers: 1, heads: 1, vocab_size: 300, max_context: 128}}
sampling: {max_tokens: 6}
credit: {use: gigpo}
warm_start: {script: hasty, episodes: 8, steps: 4, batch: 8, lr: 3.0e-3}
train: {iterations: 20, groups: 2, group_size: 3, minibatch: 6, lr: 1.0e-3}
eval: {episodes: 4, every: 5}
concurrency: 8
"""
KILLS = 20


@pytest.fixture
def tiny(counting: Path) -> Path:
    (counting / "recipe.yaml").write_text((counting / "recipe.yaml").read_text() + TRAINING)
    return counting.parent


def lives(here: Path, out: str, *more: str) -> None:
    done = python("-m", "tests.commands.lives", str(KILLS), "0", "train", "counting", "--out", out, *more, cwd=here)
    assert len(done.stdout.splitlines()) == KILLS


def test_in_turns_twenty_kills_change_no_number(tiny: Path) -> None:
    agentrl("train", "counting", "--out", "whole", cwd=tiny)
    lives(tiny, "killed")
    assert metrics(tiny / "killed") == metrics(tiny / "whole")
    assert agentrl("check", "killed", cwd=tiny).returncode == 0


def test_beside_the_trainer_every_episode_trains_once_within_the_bound(tiny: Path) -> None:
    lives(tiny, "killed", "--set", "train.max_staleness=2", "--set", "train.importance={high: 2}",
          "--set", "train.checkpoint_every=2", "--set", "tools=[{use: ./task.py:Counter, delay: 0.03}]")  # fmt: skip
    assert agentrl("check", "killed", cwd=tiny).returncode == 0
    with RunDir.read(tiny / "killed") as run:
        episodes = list(run.episodes(split="train"))
        lines = [m for m in run.metrics() if m["split"] == "train"]
        evaluated = [m["iteration"] for m in run.metrics() if m["split"] == "eval"]
        credited = [run.credit(episode.id) for episode in episodes]
        assert run.info["finished"]
    assert [m["iteration"] for m in lines] == [*range(1, 21)]
    assert sorted(evaluated) == [0, 5, 10, 15, 20]
    trained = Counter(group for line in lines for group in line["trained_groups"])
    assert trained == Counter({episode.group_id: 1 for episode in episodes})
    assert set(Counter(episode.group_id for episode in episodes).values()) == {3}
    assert all(credit is not None for credit in credited)
    assert max(m["staleness_max"] for m in lines) <= 2


SLOW_FIRST = """
class SlowFirst(Counter):
    async def open(self, task, sandbox):
        await super().open(task, sandbox)
        await asyncio.sleep(2.0 if task.id == "count0" else 0.0)
"""


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
    # After 8 demonstrations three quick groups end, and two train; the slow one ends, and the run is killed.
    script = (
        "import sys; from tests.commands.lives import live; arguments = sys.argv[1:];"
        "live(arguments, ('rollout', 8 + 4, True)); sys.exit(live(arguments, None))"
    )
    python("-c", script, *arguments, cwd=tiny)
    with RunDir.read(tiny / "killed") as run:
        trained = [group for line in run.metrics() for group in line.get("trained_groups", [])]
    assert [group.split("-")[-1] for group in trained] == ["count1", "count2", "count0", "count3"]
