"""GRPO and Dr.GRPO: one advantage per trajectory, its score against those of its group."""

from __future__ import annotations

import numpy as np

from agentrl.estimators.estimator import Advantages, estimator
from agentrl.estimators.normalise import Discount
from agentrl.estimators.score import (
    ScoredBaseline,
    ScoredNormalisation,
    broadcast,
    centred_score,
    group_advantage,
    reads_score,
)
from agentrl.estimators.table import CreditTable


class GrpoSettings(ScoredNormalisation):
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
    reads=reads_score,
)
def grpo(table: CreditTable, settings: GrpoSettings) -> Advantages:
    """A_i = (S_i - mean) / (std + eps) over the group, the same for all turns of a trajectory.

    verl's numbers are `singleton: raw`; TRL adds `eps: 1.0e-4`, OpenRLHF 1e-9.
    """
    score = settings.gamma ** np.maximum(table.length - 1, 0) * settings.scores(table)
    return broadcast(table, group_advantage(table, score, settings))


@estimator(
    granularity="trajectory",
    source="arXiv:2503.20783; volcengine/verl@b178a3c core_algos (norm_adv_by_std_in_grpo=False)",
    certainty="A",
    reads=reads_score,
)
def dr_grpo(table: CreditTable, settings: ScoredBaseline) -> Advantages:
    """A_i = S_i - mean over the group.

    This is half of Dr.GRPO. The other half is the loss: sums over tokens divided by a constant, not by each length.
    """
    return broadcast(table, centred_score(table, settings.scores(table), settings))
