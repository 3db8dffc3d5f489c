"""RiskPO: bundles of tasks are credited by a risk measure that weighs the worst of them most."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from agentrl.estimators.arrays import Floats, Ints
from agentrl.estimators.estimator import Advantages, estimator
from agentrl.estimators.score import ScoreSettings, broadcast, rank_in_group, reads_score
from agentrl.estimators.table import CreditTable


class RiskpoSettings(ScoreSettings):
    """Settings of `riskpo`.

    Attributes:
        bundle: tasks of a bundle (the authors' B).
        lower, upper: levels of the two quantiles; the authors take 0.2, and 0.8 or 0.9.
        tail: weight of the lower tail (the authors' omega).
        share: how a bundle's credit is divided: as the authors do, or equally.
    """

    bundle: int = Field(5, gt=0)
    lower: float = Field(0.2, gt=0, lt=1)
    upper: float = Field(0.8, gt=0, le=1)
    tail: float = Field(1.5, ge=0, allow_inf_nan=False)
    share: Literal["sum_mean", "equal"] = "sum_mean"


@estimator(
    granularity="trajectory", source="arXiv:2510.00911; RTkenny/RiskPO@65ec40c", certainty="B", reads=reads_score
)
def riskpo(table: CreditTable, settings: RiskpoSettings) -> Advantages:
    """Bundle the k-th trajectories of B tasks, s = sum of their scores; with q_d, q_u the quantiles of s:

    a = [(s - q_d)+ - (s - q_u)+ + q_d - q_u] / (u - d), the middle; c = -(q_d - s)+ / d, the tail;
    A = (tail * c + a) / (tail + 1), divided by the sample deviation of A over the bundles of the same tasks. With
    `sum_mean` each trajectory takes the share (S - mean of its task) / (their sum over the bundle), equal shares where
    that sum is 0.

    A is never above 0: bundles at the upper quantile get 0, all others a negative advantage. In a bundle that is below
    the quantiles but above the means of its (hard) tasks, `sum_mean` therefore inverts signs: a success gets a negative
    advantage. Its shares are also large if their sum is close to 0. `equal` avoids both.

    Differs from the authors' code: q_d and q_u are the quantiles of this batch, not tracked over batches with rate
    0.1 (an estimator has no memory), and bundles without deviation get 0. Tasks are bundled by group id and
    trajectories paired by episode id, so that order does not matter; a last bundle may be smaller.
    """
    score = settings.scores(table)
    tasks = np.argsort(np.argsort(np.array(table.group_ids)))[table.group] // settings.bundle
    bundle = np.unique(np.stack([tasks, rank_in_group(table)]), axis=1, return_inverse=True)[1].ravel()
    members = np.bincount(bundle)
    tasks_of = np.zeros(len(members), np.int64)
    tasks_of[bundle] = tasks

    value = _risk(np.bincount(bundle, score).astype(np.float64), settings)
    value = value * _inverse_deviation(value, tasks_of)[tasks_of]
    above = score - (np.bincount(table.group, score) / table.group_size)[table.group]
    total = np.bincount(bundle, above)[bundle]
    flat = (np.abs(total) <= 1e-6) | (settings.share == "equal")
    share = np.where(flat, 1 / members[bundle], above / np.where(flat, 1, total))
    return broadcast(table, value[bundle] * share)


def _risk(sums: Floats, settings: RiskpoSettings) -> Floats:
    """A of every bundle, before it is scaled [n_bundles]."""
    low, high = np.quantile(sums, [settings.lower, settings.upper])
    middle = (np.maximum(sums - low, 0) - np.maximum(sums - high, 0) + low - high) / (settings.upper - settings.lower)
    tail = -np.maximum(low - sums, 0) / settings.lower
    return np.asarray((settings.tail * tail + middle) / (settings.tail + 1))


def _inverse_deviation(value: Floats, groups: Ints) -> Floats:
    """1 / sample deviation of each group's values, 0 where they are equal, 1 for a single value [n_groups]."""
    size = np.bincount(groups)
    mean = np.bincount(groups, value) / size
    deviation = np.sqrt(np.bincount(groups, (value - mean[groups]) ** 2) / np.maximum(size - 1, 1))
    inverse = np.where(deviation > 1e-9, 1 / np.where(deviation > 1e-9, deviation, 1), 0.0)
    return np.where(size == 1, 1.0, inverse)
