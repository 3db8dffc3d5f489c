"""A2TGPO: information gain compared at equal depth, and a clip range that is wider for turns that brought more."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from agentrl.estimators.arrays import combine, discounted
from agentrl.estimators.estimator import Advantages, estimator
from agentrl.estimators.normalise import Discount, Normalisation, Std, normalise
from agentrl.estimators.score import group_advantage
from agentrl.estimators.table import CreditTable
from agentrl.estimators.turn.igpo import Gain, gain_metrics, information_gain


class A2tgpoSettings(Normalisation):
    """Settings of `a2tgpo`. `weighting` and `singleton` apply to the outcome.

    Attributes:
        gain: the difference of the gold answer's probabilities, or of their logarithms.
        gamma: discount per turn of the sum over later turns.
        alpha: weight of that sum beside the outcome.
        beta: half the width of the factors of the clip range, which lie between 1 - beta and 1 + beta. 0: the range of
            the loss is that of all turns.
    """

    std: Std = "population"
    gain: Gain = "probability"
    gamma: Discount = 1.0
    alpha: float = Field(0.3, ge=0, allow_inf_nan=False)
    beta: float = Field(0.3, ge=0, lt=1)


@estimator(
    granularity="turn",
    source="arXiv:2605.06200; CuSO4-Chen/A-TGPO verl/trainer/ppo/core_algos.py, of which excerpts were read",
    certainty="B",
    needs=["gold_logprob"],
    reads=["outcome"],
)
def a2tgpo(table: CreditTable, settings: A2tgpoSettings) -> Advantages:
    """A_t = alpha * D_t + outcome, D_t = sum_{j >= t} gamma^(j - t) z_j / sqrt(number of terms).

    z_j is the information gain of turn j (as in `igpo`), normalised over the turns of the group with the same index;
    alone at its index it is 0. The last turn has no gain. The outcome is normalised over the group. The loss's clip
    range is multiplied by 1 + beta * (2 sigmoid(z_t) - 1), at the last turn by 1.

    Differs from the authors' code: turns are known, where theirs end wherever the advantage changes; the outcome is the
    recipe's reward.
    """
    last = table.turns_left == 0
    gain = information_gain(table, settings.gain)
    z = np.zeros(table.n_turns)
    depth = combine(table.turn_group[~last], table.turn[~last])
    z[~last] = normalise(gain[~last], depth, std=settings.std, eps=settings.eps)
    terms = np.maximum(table.turns_left, 1)
    process = settings.alpha * discounted(z, table.turns_left, settings.gamma) / np.sqrt(terms)
    outcome = group_advantage(table, table.score, settings)[table.trajectory]
    scale = np.where(last, 1.0, 1 + settings.beta * np.tanh(z / 2))  # 2 sigmoid(z) - 1 = tanh(z / 2)
    return Advantages(
        process + outcome,
        parts={"gain": process, "outcome": outcome},
        metrics=gain_metrics(gain[~last]),
        clip_scale=scale if settings.beta else None,
    )
