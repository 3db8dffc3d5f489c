"""The rule of admission, and what an update is told about the age of its tokens."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.training.staleness import StalenessPolicy, staleness_metrics
from agentrl.types.episode import VersionSpan
from agentrl.types.sample import TrainingSample


@dataclass(eq=False)
class Begun:
    begun: int | None = None
    ended: int | None = None


@given(
    st.integers(0, 4),
    st.lists(st.integers(0, 4), min_size=1, max_size=12),
    st.integers(1, 20),
    st.randoms(use_true_random=False),
)
def test_no_group_trains_too_late_and_none_is_lost(eta: int, sizes: list[int], room: int, rng: random.Random) -> None:
    """Whatever a sampler draws for each iteration."""
    iterations = len(sizes)
    rule = StalenessPolicy(eta, iterations)
    groups: list[Begun] = []
    drawn = endings = trained = 0
    for version in range(iterations):
        groups += [Begun() for _ in range(sum(sizes[drawn : rule.open_until(version)]))]
        drawn = rule.open_until(version)
        while (chosen := rule.choose(groups, version, sizes[version:drawn])) is None:
            for group in groups:
                if group.begun is None and sum(g.begun is not None and g.ended is None for g in groups) < room:
                    group.begun = version
            playing = [group for group in groups if group.begun is not None and group.ended is None]
            assert playing, "nothing to wait for"
            endings += 1
            rng.choice(playing).ended = endings
        assert len(chosen) == sizes[version]
        assert all(g.ended is not None and g.begun is not None and version - g.begun <= eta for g in chosen)
        groups = [group for group in groups if group not in chosen]
        trained += len(chosen)
    assert not groups
    assert trained == sum(sizes)


def test_a_slow_group_delays_nobody_until_it_would_be_too_old() -> None:
    rule = StalenessPolicy(max_staleness=2, iterations=9)
    slow, quick, quicker = Begun(begun=0), Begun(begun=0, ended=2), Begun(begun=1, ended=1)
    assert rule.choose([slow, quick, quicker], 1, [1, 1, 1]) == [quick]  # only two updates are left for two groups of 0
    assert rule.choose([slow, quicker], 1, [1, 1, 1]) == [quicker]
    assert rule.choose([slow, quicker], 2, [1, 1, 1]) is None
    slow.ended = 3
    assert rule.choose([slow, quicker], 2, [1, 1, 1]) == [slow]


def row(mask: list[bool], spans: list[tuple[int, int, int]]) -> TrainingSample:
    n = len(mask)
    zeros = np.zeros(n, np.float32)
    return TrainingSample(
        np.arange(n), np.array(mask), zeros, zeros, "e", "g", 0, versions=[VersionSpan(*s) for s in spans]
    )


def test_staleness_counts_trained_tokens() -> None:
    rows = [row([False, True, True, True], [(3, 1, 2), (5, 2, 4)]), row([False, True], [(5, 1, 2)])]
    found = staleness_metrics(rows, version=5)
    assert found["staleness_mean"] == pytest.approx(2 / 4)
    assert found["staleness_max"] == 2
    assert found["staleness"] == {"0": 0.75, "2": 0.25}
    assert found["mixed_versions"] == 0.5
    assert staleness_metrics([row([False, True], [])], 5) == {}
