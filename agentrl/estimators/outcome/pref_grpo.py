"""Pref-GRPO: trajectories are scored by their win rate within the group, under a pairwise judge."""

from __future__ import annotations

import numpy as np

from agentrl.estimators.estimator import Advantages, estimator
from agentrl.estimators.normalise import Normalisation
from agentrl.estimators.score import broadcast, group_advantage
from agentrl.estimators.table import CreditTable, needed


@estimator(
    granularity="trajectory",
    source="arXiv:2508.20751; CodeGoat24/Pref-GRPO@3e787f6",
    certainty="A",
    needs=["win_rate"],
    reads=(),
)
def pref_grpo(table: CreditTable, settings: Normalisation) -> Advantages:
    """GRPO on the win rate, rounded to 3 digits as the authors do; the outcome itself is not read.

    The win rate is wins / comparisons, a tie or an unreadable verdict half a win for each; the reward component
    `win_rate` holds it (built in; in both orders, where the authors' code asks once).
    """
    win_rate = needed(table.win_rate, "win_rate")
    return broadcast(table, group_advantage(table, np.round(win_rate, 3), settings))
