"""Reward-to-go of each turn, compared with the group's mean."""

from __future__ import annotations

import numpy as np

from agentrl.estimators.arrays import Floats
from agentrl.estimators.estimator import Advantages, estimator
from agentrl.estimators.normalise import Discount, Normalisation, normalise
from agentrl.estimators.table import CreditTable


class ReturnsSettings(Normalisation):
    """Settings of `returns`.

    Attributes:
        gamma: discount per turn.
    """

    gamma: Discount = 0.95


@estimator(
    granularity="turn",
    source="REINFORCE with a group baseline (textbook; no golden numbers)",
    certainty="B",
    reads=["outcome", "turns"],
)
def returns(table: CreditTable, settings: ReturnsSettings) -> Advantages:
    """A_{i,t} = (G_{i,t} - mean) / (std + eps), where mean and std are over all turns of the group.

    G_{i,t} = rho_{i,t} + gamma * G_{i,t+1}, rho being the step rewards (outcome on the last turn). Under
    `weighting: trajectory` the turns of one trajectory together count once.
    """
    return against_group(table, table.returns(settings.gamma), settings)


def against_group(table: CreditTable, returns: Floats, settings: Normalisation) -> Advantages:
    """Returns by turn [n_turns], normalised over all turns of the group."""
    advantage = normalise(
        returns,
        table.turn_group,
        table.turn_weights(settings.weighting),
        std=settings.std,
        singleton=settings.singleton,
        eps=settings.eps,
        members=np.bincount(table.group[table.length > 0], minlength=table.n_groups),
        names=table.group_ids,
    )
    return Advantages(advantage, parts={"return": advantage})
