"""`agentrl train` with `train.staleness`: equal to training in turns at 0, bounded beyond."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from agentrl.store.run_dir import RunDir
from tests.command import agentrl

from .test_train import metrics, train, trainable  # noqa: F401  (a fixture)

FLOW = ("trained_groups", "episodes_in_flight", "rollouts_wait_s", "buffered_groups", "begun_groups")
SLOW = ("--set", "tools=[{use: ./task.py:Counter, delay: 0.02}]")


def test_without_staleness_it_is_training_in_turns(trainable: Path) -> None:  # noqa: F811
    here = trainable.parent
    train(here, "turns", "--set", "train.iterations=3", "--set", "eval.every=1")
    train(here, "beside", "--set", "train.iterations=3", "--set", "eval.every=1", "--set", "train.staleness=0")
    beside = [{k: v for k, v in line.items() if k not in FLOW} for line in metrics(here / "beside")]

    def order(line: dict[str, object]) -> tuple[object, object]:
        return line["iteration"], line["split"]

    assert sorted(beside, key=order) == sorted(metrics(here / "turns"), key=order)


def test_the_bound_holds_and_every_group_trains_once(trainable: Path) -> None:  # noqa: F811
    here = trainable.parent
    stale = ("--set", "train.staleness=2", "--set", "train.importance={high: 2}", "--set", "eval.every=2", *SLOW)
    train(here, "run", *stale)
    with RunDir.read(here / "run") as run:
        lines = [m for m in run.metrics() if m["split"] == "train"]
        episodes = list(run.episodes(split="train"))
        credited = [run.credit(episode.id) for episode in episodes]
        evaluated = [m["iteration"] for m in run.metrics() if m["split"] == "eval"]
    assert [m["iteration"] for m in lines] == [1, 2, 3, 4, 5]
    assert sorted(evaluated) == [0, 2, 4, 5]
    assert 0 < max(m["staleness_max"] for m in lines) <= 2
    assert all(abs(sum(m["staleness"].values()) - 1) < 1e-9 for m in lines)
    assert set(Counter(e.group_id for e in episodes).values()) == {4}
    assert len(episodes) == 5 * 3 * 4
    assert all(credit is not None for credit in credited)
    assert sum(m["episodes"] for m in lines) == len(episodes)
    assert all(set(FLOW) <= set(m) for m in lines)
    assert agentrl("check", "run", cwd=here).returncode == 0


FEW = """
from agentrl.curriculum import Sampler

class Few(Sampler):
    "Two tasks or one, whatever is asked for."
    def draw(self, tasks, count, context):
        return [tasks.at(context.iteration + k) for k in range(min(count, 2 - context.iteration % 2))]
"""


def test_a_sampler_that_draws_fewer_trains_on_what_it_drew(trainable: Path) -> None:  # noqa: F811
    """Three groups an iteration are asked for."""
    here = trainable.parent
    (trainable / "task.py").write_text((trainable / "task.py").read_text() + FEW)
    few = ("--set", "curriculum=[./task.py:Few]", "--set", "train.iterations=3", "--set", "eval=null")
    train(here, "turns", *few)
    train(here, "beside", *few, "--set", "train.staleness=0")
    beside = [{k: v for k, v in line.items() if k not in FLOW} for line in metrics(here / "beside")]
    assert beside == metrics(here / "turns")
    train(here, "ahead", *few, "--set", "train.staleness=2", "--set", "train.importance={high: 2}")
    with RunDir.read(here / "ahead") as run:
        trained = [m["trained_groups"] for m in run.metrics() if m["split"] == "train"]
        assert [len(groups) for groups in trained] == [2, 1, 2]
        assert len({name for groups in trained for name in groups}) == 5


def test_stale_tokens_need_a_correction(trainable: Path) -> None:  # noqa: F811
    refused = agentrl("train", "counting", "--set", "train.staleness=2", cwd=trainable.parent, ok=False)
    assert refused.returncode == 1
    assert "importance" in refused.stderr
