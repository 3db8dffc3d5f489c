"""GRPO-lambda: long solutions cost something, but only for the tasks that the policy solves best."""

from __future__ import annotations

import math

import numpy as np
from pydantic import Field

from agentrl.estimators.arrays import Bools, Floats
from agentrl.estimators.estimator import Advantages, estimator
from agentrl.estimators.normalise import normalise
from agentrl.estimators.score import ScoredNormalisation, broadcast, group_advantage, reads_verdict
from agentrl.estimators.table import CreditTable


class GrpoLambdaSettings(ScoredNormalisation):
    """Settings of `grpo_lambda`.

    Attributes:
        share: share of the batch's groups, those with the most right answers, in which length counts (the paper's
            lambda).
        alpha: the most that a right answer can lose for its length.
        correct_above: a trajectory is right if its score is above this.
    """

    share: float = Field(0.2, ge=0, le=1)
    alpha: float = Field(0.2, ge=0, allow_inf_nan=False)
    correct_above: float = Field(0.5, allow_inf_nan=False)


@estimator(granularity="trajectory", source="arXiv:2505.18086 (no code)", certainty="C", reads=reads_verdict)
def grpo_lambda(table: CreditTable, settings: GrpoLambdaSettings) -> Advantages:
    """GRPO on S_i - alpha * sigmoid((l_i - mean) / std) for right answers of the chosen groups, on S_i elsewhere.

    l_i are the sampled tokens; mean and deviation are over the right answers of the group. Chosen are the
    ceil(share * n) groups of the batch in which most answers are right; equal ones by group id, so that order does not
    matter. In the others accuracy alone counts: there a penalty would cost reasoning that is still needed.
    """
    score = settings.scores(table)
    right = score > settings.correct_above
    rate = np.bincount(table.group, right, table.n_groups) / np.maximum(table.group_size, 1)
    chosen = _best(table, rate, math.ceil(settings.share * table.n_groups))
    length = np.diff(table.token_offsets[table.offsets]).astype(np.float64)
    above = normalise(length, table.group, right.astype(np.float64), eps=settings.eps)
    counts = right & chosen[table.group]
    penalty = np.where(counts, settings.alpha / (1 + np.exp(-np.clip(above, -500, 500))), 0.0)
    metrics = {"length_counts": float(counts.mean())} if len(counts) else {}
    credit = broadcast(table, group_advantage(table, score - penalty, settings))
    return Advantages(credit.turn, parts=credit.parts, metrics=metrics)


def _best(table: CreditTable, rate: Floats, count: int) -> Bools:
    """Returns True for the `count` groups of the highest rate [n_groups]."""
    order = np.lexsort((np.array(table.group_ids), -rate))
    chosen = np.zeros(table.n_groups, np.bool_)
    chosen[order[:count]] = True
    return chosen
