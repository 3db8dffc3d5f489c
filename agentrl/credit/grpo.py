"""GRPO: one advantage per trajectory, its score against those of its group."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from agentrl.credit.estimator import Advantages, estimator
from agentrl.credit.normalise import Discount, Normalisation, normalise
from agentrl.credit.table import CreditTable


class GrpoSettings(Normalisation):
    """Settings of `grpo`.

    Attributes:
        gamma: the score is gamma^(T - 1) * outcome, so that of two successes the shorter is better. 1 is GRPO as
            published.
    """

    gamma: Discount = 1.0


@estimator(
    granularity="trajectory",
    source="arXiv:2402.03300; volcengine/verl@b178a3c core_algos.compute_grpo_outcome_advantage",
    certainty="A",
)
def grpo(table: CreditTable, settings: GrpoSettings) -> Advantages:
    """A_i = (S_i - mean) / (std + eps) over the group, the same for all turns of a trajectory.

    `std: none` is the advantage of Dr.GRPO. verl's numbers are `singleton: raw`.
    """
    score = settings.gamma ** np.maximum(table.length - 1, 0) * table.score
    advantage = group_advantage(table, score, settings)[table.trajectory]
    return Advantages(advantage, parts={"episode": advantage})


def group_advantage(table: CreditTable, score: NDArray[np.float64], settings: Normalisation) -> NDArray[np.float64]:
    """Scores of trajectories, normalised over their groups [n_trajectories]."""
    return normalise(
        score,
        table.group,
        table.trajectory_weights(settings.weighting),
        std=settings.std,
        singleton=settings.singleton,
        eps=settings.eps,
        names=table.group_ids,
    )
