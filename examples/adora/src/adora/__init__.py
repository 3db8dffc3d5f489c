"""ADORA: a group whose right episodes are no longer than its wrong ones teaches less."""

import numpy as np
from pydantic import BaseModel, Field

from agentrl.estimators import Advantages, CreditTable, estimator


class Adora(BaseModel, extra="forbid"):
    """Settings: the score of a right episode, the weight of other groups, and the tokens of an overlong reply."""

    right: float = 1.0
    weight: float = Field(0.1, ge=0, le=1)
    overlong: int = 4054


@estimator(source="arXiv:2602.10019; ShadeCloak/ADORA core_algos", certainty="A", reads=["outcome"])
def adora(table: CreditTable, settings: Adora) -> Advantages:
    """GRPO, times `weight` in groups whose longest right episode is no longer than their wrong ones are on average."""
    tokens = np.bincount(table.trajectory, table.tokens, table.n_trajectories)
    grpo, lost = np.zeros(table.n_trajectories), np.zeros(table.n_trajectories)
    for group in range(table.n_groups):
        own = table.group == group
        score, length = table.score[own], tokens[own]
        if len(score) > 1:
            grpo[own] = (score - score.mean()) / (score.std(ddof=1) + 1e-6)
        right = length[score >= settings.right]
        wrong = length[(score < settings.right) & (length < settings.overlong)]
        if right.max(initial=-np.inf) <= (wrong.mean() if len(wrong) else -np.inf):
            lost[own] = (settings.weight - 1) * grpo[own]
    parts = {"grpo": grpo[table.trajectory], "attenuation": lost[table.trajectory]}
    return Advantages(turn=parts["grpo"] + parts["attenuation"], parts=parts)
