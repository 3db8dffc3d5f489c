"""GRPO, Dr.GRPO and Lite PPO: one advantage per trajectory, its score against those of its group."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from agentrl.estimators.estimator import Advantages, estimator
from agentrl.estimators.normalise import Discount, Std, deviation, normalise
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


class LitePpoSettings(ScoredBaseline):
    """Settings of `lite_ppo`.

    Attributes:
        std: the deviation of the batch's scores: of the sample, of the population, or none.
        eps: added to the deviation.
    """

    std: Std = "sample"
    eps: float = Field(1e-6, ge=0, allow_inf_nan=False)


@estimator(granularity="trajectory", source="arXiv:2508.08221", certainty="B", reads=reads_score)
def lite_ppo(table: CreditTable, settings: LitePpoSettings) -> Advantages:
    """A_i = (S_i - mean over the group) / (std of the batch's scores + eps).

    This is half of Lite PPO. The other half is the loss: PPO's, every token counting the same
    (`train.aggregation: token_mean`). `reinforce_pp_baseline` divides by the deviation of the centred scores instead.
    """
    score, weights = settings.scores(table), table.trajectory_weights(settings.weighting)
    batch = np.zeros(table.n_trajectories, np.int64)
    around = normalise(score, batch, weights, std="none")
    scale = deviation(around, batch, weights, std=settings.std, eps=settings.eps)[batch]
    return broadcast(table, centred_score(table, score, settings) / scale)
