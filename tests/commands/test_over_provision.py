"""`train.over_provision`: a group ends with the first of its episodes that end; slow ones are aborted. And groups of an
update: it trains on the first that end."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import agentrl
from agentrl.store.check import check
from agentrl.store.run_dir import RunDir
from agentrl.types.errors import RecipeError
from tests.command import python

pytestmark = pytest.mark.slow

SLOW = '''
class Slow(Counter):
    """Two of five episodes would take minutes."""
    opened = 0
    async def open(self, task, sandbox):
        await super().open(task, sandbox)
        Slow.opened += 1
        if Slow.opened % 5 in (1, 2):
            await asyncio.sleep(300)

class SlowGroups(Counter):
    """Some of the episodes of every fifth task would take minutes."""
    opened = 0
    async def open(self, task, sandbox):
        await super().open(task, sandbox)
        SlowGroups.opened += 1
        if task.data["to"] == 3 and SlowGroups.opened % 2:
            await asyncio.sleep(300)

def fewest(group):
    least = min(len(e.turns) for e in group)
    return [float(len(e.turns) == least) for e in group]
'''
TRAINING = """\
agent: {format: tags, max_turns: 4, describe_tools: false}
model: {scratch: {hidden: 16, layers: 1, heads: 1, vocab_size: 300, max_context: 128}}
sampling: {max_tokens: 6}
train: {iterations: 3, groups: 2, group_size: 3, minibatch: 6, lr: 1.0e-3, over_provision: 2}
concurrency: 10
limits: {open_s: 600}
"""


@pytest.fixture
def slow(counting: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(counting.parent)
    (counting / "task.py").write_text((counting / "task.py").read_text() + SLOW)
    recipe = (counting / "recipe.yaml").read_text().replace("./task.py:Counter", "./task.py:Slow")
    recipe = recipe.replace("{exact: ./task.py:exact}", "{exact: ./task.py:exact, fewest: ./task.py:fewest}")
    (counting / "recipe.yaml").write_text(recipe + TRAINING)
    return counting


def check_run(at_least_aborted: int) -> None:
    with RunDir.read("run") as run:
        lines = [line for line in run.metrics() if line["split"] == "train"]
        episodes = list(run.episodes(split="train"))
        assert [line["iteration"] for line in lines] == [1, 2, 3]
        assert sum(line["aborted_episodes"] for line in lines) >= at_least_aborted
        sizes = Counter(episode.group_id for episode in episodes)
        assert set(sizes) == {group for line in lines for group in line["trained_groups"]}
        assert all(3 <= size <= 5 for size in sizes.values())
        assert all(e.reward == e.components["exact"] + e.components["fewest"] for e in episodes)
        assert all(run.credit(episode.id) is not None for episode in episodes)
    report = check("run")
    assert report.ok, report.as_text()


@pytest.mark.parametrize("staleness", [0, 1])
def test_a_group_does_not_wait_for_its_slow_episodes(slow: Path, staleness: int) -> None:
    more = {"train.max_staleness": 1, "train.importance": {"high": 2}} if staleness else {}
    agentrl.train("counting", out="run", overrides=more, reporters=())
    check_run(at_least_aborted=6)


KILLED = """
import os, signal, sys
import agentrl
from agentrl.store.run_dir import RunDir

real, left = RunDir.add, int(sys.argv[1])

def deadly(self, episode):
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(self, episode)

RunDir.add = deadly
agentrl.train("counting", out="run", reporters=())
"""


@pytest.mark.parametrize("after", [2, 9])
def test_a_run_that_was_killed_continues(slow: Path, after: int) -> None:
    done = python("-c", KILLED, str(after), ok=False)
    assert done.returncode == -9
    agentrl.train("counting", out="run", reporters=())
    check_run(at_least_aborted=1)


@pytest.fixture
def slow_groups(slow: Path) -> Path:
    recipe = (slow / "recipe.yaml").read_text().replace("./task.py:Slow", "./task.py:SlowGroups")
    (slow / "recipe.yaml").write_text(recipe.replace("over_provision: 2", "over_provision_groups: 1"))
    return slow


def check_groups() -> None:
    with RunDir.read("run") as run:
        lines = [line for line in run.metrics() if line["split"] == "train"]
        episodes = list(run.episodes(split="train"))
        trained = [line["trained_groups"] for line in lines]
        assert [len(groups) for groups in trained] == [2, 2, 2]
        assert [line["aborted_groups"] for line in lines] == [1, 1, 1]
        assert all(line["begun_groups"] == line["buffered_groups"] == 0 for line in lines)
        assert not any("count2" in group or "count7" in group for groups in trained for group in groups)
        sizes = Counter(episode.group_id for episode in episodes)
        assert all(sizes[group] == 3 for groups in trained for group in groups)
        for episode in episodes:
            took = any(episode.group_id in groups for groups in trained)
            assert (run.credit(episode.id) is not None) == took
    report = check("run")
    assert report.ok, report.as_text()


def test_an_update_does_not_wait_for_its_slow_groups(slow_groups: Path) -> None:
    agentrl.train("counting", out="run", reporters=())
    check_groups()


def test_a_killed_run_with_slow_groups_continues(slow_groups: Path) -> None:
    done = python("-c", KILLED, "8", ok=False)
    assert done.returncode == -9
    agentrl.train("counting", out="run", reporters=())
    check_groups()


def test_slow_groups_are_aborted_or_train_later(slow_groups: Path) -> None:
    later = {"train.max_staleness": 1, "train.importance": {"high": 2}}
    with pytest.raises(RecipeError, match="choose one"):
        agentrl.train("counting", out="run", overrides=later, reporters=())
