"""`agentrl train` with `train.max_staleness`: the bound holds, and computing beside the rollouts changes no number."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from agentrl.api.train import train as train_recipe
from agentrl.store.checkpoints import latest
from agentrl.store.run_dir import RunDir
from agentrl.training import assembly
from agentrl.types.errors import AgentRLError
from agentrl.types.reporter import Reporter
from tests.command import sets
from tests.counting import metrics
from tests.sound import assert_sound

from .test_train import train

pytestmark = pytest.mark.slow

FLOW = ("trained_groups", "episodes_in_flight", "rollouts_wait_s", "buffered_groups", "begun_groups")
IMPORTANCE = "train.importance={high: 2}"
SLOW = "tools=[{use: ./task.py:Counter, delay: 0.02}]"


def in_order(run: Path) -> list[dict[str, Any]]:
    return sorted(metrics(run), key=lambda line: (line["iteration"], line["split"]))


def test_a_thread_and_evaluations_in_the_background_change_no_number(
    trainable: Path,
    warm: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here, few = trainable.parent, [*warm, "train.iterations=3", "eval.every=1"]
    train_recipe(trainable, overrides=few, out=here / "turns", reporters=())
    monkeypatch.setattr(assembly, "works_beside", lambda recipe: True)
    train_recipe(trainable, overrides=few, out=here / "beside", reporters=())
    assert in_order(here / "beside") == in_order(here / "turns")


class Notes(Reporter):
    """Keeps what a run says of its stages."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, text: str) -> None:
        if text.startswith("stage "):
            self.said.append(text)


@pytest.mark.parametrize("beside", [[], ["train.max_staleness=1", IMPORTANCE]])
def test_a_stage_that_an_evaluation_ends_keeps_its_policy(trainable: Path, beside: list[str]) -> None:
    """After an iteration that no checkpoint is due at; the same command then trains no further."""
    few = ["warm_start=null", "train.iterations=8", "train.checkpoint_every=2", "eval={every: 1, episodes: 2}", *beside]
    stop, run = "train.stop={metric: eval/success, patience: 3}", trainable.parent / "run"
    for _ in range(2):
        notes = Notes()
        train_recipe(trainable, overrides=[*few, stop], out=run, reporters=[notes])
        assert notes.said == ["stage rl ends after 3 iterations: eval/success is no better than 3 lines ago"]
        assert latest(run / "checkpoints") == run / "checkpoints" / "it-00003"
        found = [(line["split"], line["iteration"]) for line in metrics(run)]
        assert found == [("eval", 0), *((split, k) for k in (1, 2, 3) for split in ("train", "eval"))]


def test_the_bound_holds_and_every_group_trains_once(trainable: Path, warm: list[str]) -> None:
    here = trainable.parent
    train(here, "run", *sets(*warm, "train.max_staleness=2", IMPORTANCE, "eval.every=2", SLOW))
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
    assert_sound(here / "run")


FEW = """
from agentrl.curriculum import Sampler

class Few(Sampler):
    "Two tasks or one, whatever is asked for."
    def draw(self, tasks, count, context):
        return [tasks.at(context.iteration + k) for k in range(min(count, 2 - context.iteration % 2))]
"""


def test_a_sampler_that_draws_fewer_trains_on_what_it_drew(trainable: Path, warm: list[str]) -> None:
    """Three groups an iteration are asked for."""
    here = trainable.parent
    (trainable / "task.py").write_text((trainable / "task.py").read_text() + FEW)
    few = sets(*warm, "curriculum=[./task.py:Few]", "train.iterations=3", "eval=null")
    train(here, "turns", *few)
    train(here, "ahead", *few, *sets("train.max_staleness=2", IMPORTANCE))
    with RunDir.read(here / "ahead") as run:
        trained = [m["trained_groups"] for m in run.metrics() if m["split"] == "train"]
        assert [len(groups) for groups in trained] == [2, 1, 2]
        assert len({name for groups in trained for name in groups}) == 5


def test_stale_tokens_need_a_correction(trainable: Path) -> None:
    with pytest.raises(AgentRLError, match="importance"):
        train_recipe(trainable, overrides=["train.max_staleness=2"], reporters=())
