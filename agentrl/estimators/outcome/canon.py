"""CANON: the group is split by a property (length, entropy), and its halves are compared with each other."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import numpy as np
from pydantic import Field

from agentrl.estimators.arrays import Floats
from agentrl.estimators.estimator import Advantages, Need, estimator
from agentrl.estimators.score import ScoredBaseline, broadcast, rank_in_group, reads_score, settle_singletons
from agentrl.estimators.table import CreditTable, needed


class CanonSettings(ScoredBaseline):
    """Settings of `canon`.

    Attributes:
        metric: `length`: sampled tokens. `entropy`: mean of -log-probability over the sampled tokens, an estimate of
            the policy's entropy (the authors average the exact one).
        mu: 1: each half against the other (the default); 0: each half against itself; mixed between.
        alpha: below 1 it favours one half: with `entropy` the high one, with `length` the low (short) one.
    """

    metric: Literal["length", "entropy"] = "length"
    mu: float = Field(1.0, ge=0, le=1)
    alpha: float = Field(1.0, ge=0, allow_inf_nan=False)


def _needs(settings: CanonSettings) -> Iterable[Need]:
    return ("behaviour_logprob",) if settings.metric == "entropy" else ()


@estimator(
    granularity="trajectory",
    source="arXiv:2509.23962; biuboomc/CANON@7d6f814",
    certainty="A",
    needs=_needs,
    reads=reads_score,
)
def canon(table: CreditTable, settings: CanonSettings) -> Advantages:
    """Compares each trajectory with the mean of the OTHER half (share mu) and of its own half (share 1 - mu).

    Sorted by the metric, the first floor(N / 2) are low. With `entropy`:
    high: mu * (S - alpha * m_low) + (1 - mu) * (S - m_high); low: mu * (alpha * S - m_high) + (1 - mu) * (S - m_low).
    With `length` alpha is on the other side: alpha * S - m_low, and S - alpha * m_high. The authors divide by the
    greatest length, because their loss sums over tokens; here that is left to the loss. Equal metrics are ordered by
    episode id, so that the order of episodes does not matter.
    """
    score = settings.scores(table)
    metric = mean_surprisal(table) if settings.metric == "entropy" else table.trajectory_weights("token")
    high = rank_in_group(table, metric) >= table.group_size[table.group] // 2
    weights = table.trajectory_weights(settings.weighting)
    half = 2 * table.group + high
    weights = np.where(np.bincount(half, weights)[half] > 0, weights, 1.0)  # a half without tokens still has a mean
    total = np.bincount(half, weights, 2 * table.n_groups)
    mean = np.bincount(half, weights * score, 2 * table.n_groups) / np.where(total > 0, total, 1)
    own, other = mean[half], mean[half ^ 1]

    favoured = high if settings.metric == "entropy" else ~high
    across = np.where(favoured, score - settings.alpha * other, settings.alpha * score - other)
    advantage = settings.mu * across + (1 - settings.mu) * (score - own)
    return broadcast(table, settle_singletons(table, advantage, score, settings.singleton))


def mean_surprisal(table: CreditTable) -> Floats:
    """Mean of -log-probability over a trajectory's sampled tokens, 0 without any [n_trajectories]."""
    behaviour_logprob = needed(table.behaviour_logprob, "behaviour_logprob")
    tokens = np.diff(table.token_offsets[table.offsets])
    owner = np.repeat(np.arange(table.n_trajectories), tokens)
    return -np.bincount(owner, behaviour_logprob, table.n_trajectories) / np.maximum(tokens, 1)
