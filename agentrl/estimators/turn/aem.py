"""AEM: the advantages of uncertain turns are made smaller, and those of certain turns larger."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from agentrl.estimators.arrays import Floats, Ints
from agentrl.estimators.estimator import Advantages, estimator
from agentrl.estimators.score import ScoredNormalisation, group_advantage, reads_score
from agentrl.estimators.table import CreditTable, needed


class AemSettings(ScoredNormalisation):
    """Settings of `aem`, and of the `grpo` advantage that it modulates.

    Attributes:
        strength: lambda, how much the factor falls from the most certain turn to the least certain one. 0: `grpo`.
        over: the turns among which uncertainty is ranked, and whose mean factor is 1.
    """

    strength: float = Field(1.0, ge=0, allow_inf_nan=False)
    over: Literal["trajectory", "group"] = "trajectory"


@estimator(
    granularity="turn",
    source="arXiv:2605.00425, from a summary with its formulas; no code published",
    certainty="C",
    needs=["entropy"],
    reads=reads_score,
)
def aem(table: CreditTable, settings: AemSettings) -> Advantages:
    """A_t = alpha_t * grpo, alpha_t = exp(-strength * h_t) / mean of this over the trajectory's turns.

    h_t is the mean entropy of the policy at the tokens of the turn, from 0 for the trajectory's least to 1 for its
    greatest. While failures prevail, certain turns are then pushed down more than uncertain ones, which raises entropy;
    once successes prevail they are pulled up more, which lowers it. Turns without tokens do not count and get 0.
    """
    entropy = table.turn_mean(needed(table.entropy, "entropy"))
    spoken = table.tokens > 0
    pool = (table.trajectory if settings.over == "trajectory" else table.turn_group)[spoken]
    factor = np.zeros(table.n_turns)
    factor[spoken] = _factors(entropy[spoken], pool, settings.strength)
    turn = factor * group_advantage(table, settings.scores(table), settings)[table.trajectory]
    widest = float(factor[spoken].max()) if spoken.any() else 1.0
    return Advantages(turn, parts={"episode": turn}, metrics={"largest_modulation": widest})


def _factors(entropy: Floats, pool: Ints, strength: float) -> Floats:
    size = int(pool.max(initial=-1)) + 1
    low, high = np.full(size, np.inf), np.full(size, -np.inf)
    np.minimum.at(low, pool, entropy)
    np.maximum.at(high, pool, entropy)
    width = (high - low)[pool]
    scaled = np.divide(entropy - low[pool], width, out=np.zeros(len(entropy)), where=width > 0)
    factor: Floats = np.exp(-strength * scaled)
    mean = np.bincount(pool, factor, size) / np.maximum(np.bincount(pool, minlength=size), 1)
    return np.asarray(factor / mean[pool], np.float64)
