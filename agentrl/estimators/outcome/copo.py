"""COPO: if a group agrees on its answer, its task is compared with the other tasks of the batch instead."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from agentrl.estimators.arrays import Floats
from agentrl.estimators.estimator import Advantages, estimator
from agentrl.estimators.normalise import normalise
from agentrl.estimators.score import ScoredNormalisation, group_advantage, reads_score
from agentrl.estimators.table import CreditTable, needed


class CopoSettings(ScoredNormalisation):
    """Settings of `copo`.

    Attributes:
        slope: steepness of the weight (the paper's gamma).
        threshold: entropy, in nats, at which both parts count the same (the paper's rho).
    """

    slope: float = Field(20.0, ge=0, allow_inf_nan=False)
    threshold: float = Field(1.5, ge=0, allow_inf_nan=False)

    @property
    def needs_members(self) -> bool:
        """Groups are compared with each other, too."""
        return False


@estimator(granularity="trajectory", source="arXiv:2508.04138", certainty="B", needs=["answer"], reads=reads_score)
def copo(table: CreditTable, settings: CopoSettings) -> Advantages:
    """A_i = w_g * local_i + (1 - w_g) * global_g, w_g = sigmoid(slope * (H_g - threshold)).

    local is GRPO's advantage, global the normalised mean score of the group among the groups of the batch, H the
    entropy of the group's answers. Giving no answer counts as an answer. Nats are our reading: at base 2 a group of 8
    could reach 3. Groups of 4 cannot exceed ln 4 = 1.39: lower the threshold for them.
    """
    score = settings.scores(table)
    weights = table.trajectory_weights(settings.weighting)
    total = np.bincount(table.group, weights)
    means = np.bincount(table.group, weights * score) / np.where(total > 0, total, 1)
    one_batch = np.zeros(table.n_groups, np.int64)
    across = normalise(means, one_batch, std=settings.std, eps=settings.eps)

    exponent = np.clip(settings.slope * (answer_entropy(table) - settings.threshold), -500, 500)
    weight = (1 / (1 + np.exp(-exponent)))[table.group]
    parts = {
        "local": (weight * group_advantage(table, score, settings))[table.trajectory],
        "global": ((1 - weight) * across[table.group])[table.trajectory],
    }
    return Advantages(parts["local"] + parts["global"], parts=parts)


def answer_entropy(table: CreditTable) -> Floats:
    """Entropy of the distribution of answers inside each group, in nats [n_groups]."""
    answer = needed(table.answer, "answer")
    pairs, count = np.unique(np.stack([table.group, answer]), axis=1, return_counts=True)
    share = count / table.group_size[pairs[0]]
    return np.asarray(np.bincount(pairs[0], -share * np.log(share), table.n_groups))
