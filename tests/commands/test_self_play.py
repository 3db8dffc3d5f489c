"""recipes/self-play: who plays whom, which earlier selves are kept, and what is refused."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from agentrl.api.eval import eval
from agentrl.api.recipe_check import check as check_recipe
from agentrl.api.train import train
from agentrl.config.agent import EarlierSelves
from agentrl.store import RunDir
from agentrl.types.episode import Episode
from agentrl.types.errors import AgentRLError
from agentrl.types.paths import data_path
from tests.counting import CANARY, metrics
from tests.sound import assert_sound

RECIPE = data_path("recipes", "self-play")
SMALL = [
    "model.scratch.hidden=16", "model.scratch.layers=1", "stages.0.sft.episodes=12", "stages.0.sft.steps=6",
    "train.groups=2", "train.group_size=3", "train.lr_schedule=constant", "eval.episodes=4",
    "policies.past.checkpoint={every: 1, last: 2}",
]  # fmt: skip


def played(out: Path, iterations: int) -> tuple[list[Episode], list[dict[str, Any]]]:
    """The episodes of a training, and its metrics but for times."""
    train(RECIPE, overrides=[*SMALL, f"train.iterations={iterations}"], out=out, reporters=[])
    assert_sound(out)
    with RunDir.read(out) as run:
        return list(run.episodes(split="train")), metrics(out, but_for=CANARY)


def versions(episodes: list[Episode]) -> dict[str, int | None]:
    """The earlier self that each episode heard."""
    return {episode.id: episode.contexts["them"].version for episode in episodes if episode.contexts}


@pytest.mark.slow
def test_episodes_hear_the_last_earlier_selves_and_a_continued_run_hears_the_same(tmp_path: Path) -> None:
    whole, lines = played(tmp_path / "whole", 4)
    by_group: dict[str, set[int | None]] = defaultdict(set)
    for episode in whole:
        assert {context.policy for context in episode.contexts.values()} <= {"past"}
        assert all(node.kind == "spoken" for turn in episode.turns if turn.context == "them"
                   for node in [episode.nodes[turn.node]])  # fmt: skip
        for context in episode.contexts.values():
            assert context.version in EarlierSelves(every=1, last=2).at(episode.iteration)
            by_group[episode.group_id].add(context.version)
    roles = {(turn.context, turn.agent) for episode in whole for turn in episode.turns}
    assert roles >= {("main", "first"), ("them", "first")}  # hardly trained, who begins loses by its first move
    assert all(len(heard) == 1 for heard in by_group.values())
    assert len({version for heard in by_group.values() for version in heard}) > 2
    assert [line["turns/past"] > 0 for line in lines if line["split"] == "train"] == [True] * 4
    kept = sorted(folder.name for folder in (tmp_path / "whole" / "checkpoints").iterdir())
    assert kept == ["01-play-000000", "01-play-000003", "01-play-000004"]  # `first` plays the one before training

    played(tmp_path / "parts", 2)
    parts, continued = played(tmp_path / "parts", 4)
    assert versions(parts) == versions(whole)
    train_lines = [[line for line in each if line["split"] == "train"] for each in (continued, lines)]
    assert train_lines[0] == train_lines[1]


@pytest.mark.slow
def test_a_self_that_rollouts_may_still_draw_is_kept(tmp_path: Path) -> None:
    """With staleness, episodes begin between the checkpoint of an update and its publication."""
    stale = ["train.max_staleness=1", "train.old_logprobs=engine", "train.iterations=3", "eval=null"]
    train(RECIPE, overrides=[*SMALL, *stale], out=tmp_path / "run", reporters=[])
    kept = {int(folder.name[-6:]) for folder in (tmp_path / "run" / "checkpoints").iterdir()}
    assert kept >= {*EarlierSelves(every=1, last=2).at(2), *EarlierSelves(every=1, last=2).at(3)}


@pytest.mark.slow
def test_earlier_selves_need_a_training(tmp_path: Path) -> None:
    played(tmp_path / "run", 1)
    with pytest.raises(AgentRLError) as refused:
        eval(tmp_path / "run", n=2, out=tmp_path / "eval", reporters=[])
    assert "policies.past: it speaks in a training only" in str(refused.value)
    first = f"{{checkpoint: {tmp_path}/run/checkpoints/01-play-000000}}"
    named = [f"policies.past={first}", f"policies.first={first}"]
    eval(tmp_path / "run", n=2, overrides=named, out=tmp_path / "eval", reporters=[])
    with RunDir.read(tmp_path / "eval") as run:
        assert {context.policy for episode in run.episodes() for context in episode.contexts.values()} == {"first"}


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("policies.past.checkpoint={every: 0}", "every"),
        ("policies.past.checkpoint={evry: 5}", "evry"),
        ("policies.past.checkpoint=every 5", "'every 5' is neither a run nor a model"),
        ("policies.past.engine=torch", "earlier selves speak in this process: remove 'engine'"),
        ("engine={use: vllm, urls: ['http://127.0.0.1:1']}", "not with engine.use"),
        ("scale.rollout_workers=2", "not with scale.rollout_workers"),
    ],
)
def test_selves_that_cannot_speak_are_refused(override: str, said: str) -> None:
    with pytest.raises(AgentRLError) as refused:
        check_recipe(str(RECIPE), [override])
    assert said in str(refused.value)
    assert "policies.past" in str(refused.value)
