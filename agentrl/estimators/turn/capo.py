"""CAPO: the outcome for every token, less a penalty where a critique found the step wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
from pydantic import Field

from agentrl.estimators.arrays import Floats
from agentrl.estimators.estimator import Advantages, estimator
from agentrl.estimators.normalise import Normalisation, normalise
from agentrl.estimators.table import CreditTable, needed

Vote = Literal["intersection", "majority", "union", "average"]

VOTES: dict[Vote, Callable[[Floats], Floats]] = {
    "intersection": lambda share: (share >= 1).astype(np.float64),
    "majority": lambda share: (share >= 0.5).astype(np.float64),
    "union": lambda share: (share > 0).astype(np.float64),
    "average": lambda share: share,
}
"""The penalty for a share of critiques that call a step wrong."""


class CapoSettings(Normalisation):
    """Settings of `capo`. `weighting: trajectory` lets the tokens of a trajectory together count once.

    Attributes:
        outcome_weight: weight of the outcome, for every token.
        process_weight: weight of the penalty of a wrong step.
        vote: how several critiques are combined. The authors take `intersection` for small models, `majority` or
            `union` for larger ones.
    """

    outcome_weight: float = Field(2.0, allow_inf_nan=False)
    process_weight: float = Field(1.0, allow_inf_nan=False)
    vote: Vote = "intersection"


@estimator(
    granularity="token",
    source="arXiv:2508.02298 (no code); how token rewards are normalised over the group was not readable (C)",
    certainty="B",
    needs=["wrong"],
    reads=["outcome"],
)
def capo(table: CreditTable, settings: CapoSettings) -> Advantages:
    """A_k = (r_k - mean) / (std + eps) over the tokens of the group.

    r_k = outcome_weight * R - process_weight * wrong_k. With the default weights a token's reward is 2, 1, 0 or -1.

    A step is a span of a reply that the component `wrong` marks (`agentrl.rewards.Span`), as in the paper, or a whole
    turn if it gives one number.

    Differs from the paper: the built-in `critique` marks turns, with our prompt; the authors' vote `greedy` is not
    implemented.
    """
    wrong = needed(table.wrong, "wrong")
    owner = table.trajectory[table.token_turn]
    reward = settings.outcome_weight * table.score[owner] - settings.process_weight * VOTES[settings.vote](wrong)
    weights = (table.turn_weights(settings.weighting) / np.maximum(table.tokens, 1))[table.token_turn]
    if settings.weighting == "trajectory":
        weights = 1.0 / np.bincount(owner)[owner]
    spoke = np.unique(owner)
    token = normalise(
        reward,
        table.group[owner],
        weights,
        std=settings.std,
        singleton=settings.singleton,
        eps=settings.eps,
        members=np.bincount(table.group[spoke], minlength=table.n_groups),
        names=table.group_ids,
    )
    return Advantages(table.turn_mean(token), token)
