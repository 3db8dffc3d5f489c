"""`train.over_provision`: a group ends with the first of its episodes that end; slow ones are aborted."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import agentrl
from agentrl.store.check import check
from agentrl.store.run_dir import RunDir
from tests.command import python

SLOW = '''
class Slow(Counter):
    """Two of five episodes would take minutes."""
    opened = 0
    async def open(self, task, sandbox):
        await super().open(task, sandbox)
        Slow.opened += 1
        if Slow.opened % 5 in (1, 2):
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
from tests.command import python

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
