"""The statistics of benchmarks.credit_truth."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from agentrl.api.credit import credit
from agentrl.api.rollout import rollout
from agentrl.api.run import Run
from agentrl.estimators.registry import ESTIMATORS
from benchmarks.credit_truth import ESTIMATORS as COMPARED
from benchmarks.credit_truth import HERE, agreement, credit_of, probe_all, ranks, spearman


@pytest.mark.slow
def test_ranks_of_ties_are_shared() -> None:
    assert ranks([3.0, 1.0, 3.0, 2.0]).tolist() == [3.5, 1.0, 3.5, 2.0]


@pytest.mark.parametrize(("b", "expected"), [([1, 4, 9, 16], 1.0), ([4, 3, 2, 1], -1.0), ([5, 5, 5, 5], 0.0)])
def test_rank_correlation(b: list[float], expected: float) -> None:
    assert spearman(np.array([1, 2, 3, 4]), np.array(b)) == pytest.approx(expected)


def test_rank_correlation_with_ties() -> None:
    assert spearman([1, 2, 2, 3], [1, 3, 2, 4]) == pytest.approx(0.9486832980505138)


def test_the_estimators_are_there() -> None:
    assert {each["use"] for each in COMPARED.values()} <= set(ESTIMATORS.all())
    assert len(COMPARED) >= 12


@pytest.mark.slow
def test_turns_of_the_kitchen_are_probed(tmp_path: Path) -> None:
    played = rollout(HERE / "kitchen", 16, group_size=4, script="cook", out=tmp_path / "played", reporters=())
    probed = probe_all(played, 8, 2, tmp_path)
    lengths = {episode.id: len(episode.turns) for episode in played.whole_episodes()}
    assert len({episode for episode, _ in probed}) == 2
    for episode in {episode for episode, _ in probed}:
        assert [turn for of, turn in probed if of == episode] == list(range(lengths[episode]))
    restored = next(Run(tmp_path / "probe-0").whole_episodes())
    assert restored.turns[0].saved == [[0, False]]
    found = agreement(played, "rloo", probed)
    assert -1 <= found.spearman <= 1
    assert found.sign is not None
    # The same states in another run: credit that remembers begins with those that trained.
    before = rollout(
        HERE / "kitchen", 16, overrides=["seed=1"], group_size=4, script="cook", out=tmp_path / "before", reporters=()
    )
    alone, remembering = (credit_of(played, "gagpo, decay 0.5", run) for run in (None, as_trained(before)))
    assert alone == {each.episode_id: each.turn_advantages for each in credit(played, "gagpo").credits}
    assert alone != remembering


def as_trained(run: Run) -> Run:
    """The run, with its episodes as those of a training."""
    episodes = [msgspec.structs.replace(episode, split="train") for episode in run.whole_episodes()]
    return SimpleNamespace(whole_episodes=lambda: episodes)  # type: ignore[return-value]
