"""Unlikeliness: correct trajectories that are unlikely under the policy get more credit."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from agentrl.estimators.arrays import Floats, Ints
from agentrl.estimators.estimator import Advantages, estimator
from agentrl.estimators.outcome.canon import mean_surprisal
from agentrl.estimators.score import ScoredNormalisation, broadcast, group_advantage, reads_score
from agentrl.estimators.table import CreditTable


class UnlikelinessSettings(ScoredNormalisation):
    """Settings of `unlikeliness`.

    Attributes:
        beta: the share of its score that the likeliest trajectory of a large group loses.
    """

    beta: float = Field(0.25, ge=0, le=1)


@estimator(
    granularity="trajectory",
    source="arXiv:2506.02355; AndreHe02/rewarding-unlikely-release@ca1cff0",
    certainty="A",
    needs=["behaviour_logprob"],
    reads=reads_score,
)
def unlikeliness(table: CreditTable, settings: UnlikelinessSettings) -> Advantages:
    """GRPO on S_i * (1 - beta * rank_i / N), rank by mean token log-probability in the group, 0 the least likely.

    Equal means share the average of their ranks, so that order does not matter.
    """
    rank = _ranks(-mean_surprisal(table), table.group)
    score = settings.scores(table) * (1 - settings.beta * rank / table.group_size[table.group])
    return broadcast(table, group_advantage(table, score, settings))


def _ranks(values: Floats, groups: Ints) -> Floats:
    """Rank of each value inside its group, from 0; equal values share the average [n]."""
    pairs, level, count = np.unique(np.stack([groups, values]), axis=1, return_inverse=True, return_counts=True)
    start = np.cumsum(count) - count
    first = start[np.searchsorted(pairs[0], np.arange(int(groups.max(initial=-1)) + 1))]
    level = level.ravel()
    return np.asarray(start[level] - first[groups] + (count[level] - 1) / 2, np.float64)
