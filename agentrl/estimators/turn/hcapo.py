"""HCAPO: turns that the policy finds likelier than others, once it knows the outcome, get more of it."""

from __future__ import annotations

from typing import Self

import numpy as np
from pydantic import Field, model_validator

from agentrl.estimators.arrays import Floats
from agentrl.estimators.estimator import Advantages, estimator
from agentrl.estimators.normalise import Discount, Normalisation, normalise
from agentrl.estimators.score import group_advantage
from agentrl.estimators.table import CreditTable, needed


class HcapoSettings(Normalisation):
    """Settings of `hcapo`, with the paper's values. `weighting` and `singleton` apply to the episode part.

    Attributes:
        gamma: discount per turn of the outcome.
        omega: weight of the hindsight part.
        temperature: divides the mean log-probability of a turn.
        clip: bounds of the ratio.
        smooth: weight of a turn's own Q-value; the rest is that of the next turn. 1: none. The paper's smoothed variant
            takes 0.5.
        protect: whether turns of a success never lose by the hindsight part.
        success: outcomes above it are successes.
    """

    gamma: Discount = 0.95
    omega: float = Field(1.0, ge=0, allow_inf_nan=False)
    temperature: float = Field(5.0, gt=0, allow_inf_nan=False)
    clip: tuple[float, float] = (0.8, 1.2)
    smooth: float = Field(1.0, gt=0, le=1)
    protect: bool = True
    success: float = Field(0.0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        low, high = self.clip
        if not 0 <= low <= 1 <= high < np.inf:
            raise ValueError(f"clip is {low:g} to {high:g}: give bounds around 1, such as [0.8, 1.2]")
        return self


@estimator(
    granularity="turn",
    source="arXiv:2603.08754 Eq. 3 to 8 and Algorithm 1, as transcribed by others; no code published",
    certainty="B",
    needs=["hindsight_logprob"],
    reads=["outcome"],
)
def hcapo(table: CreditTable, settings: HcapoSettings) -> Advantages:
    """A_{i,t} = A^E_i + omega * (Q_{i,t} - mean) / (std + eps), the last over all turns of the group.

    A^E is the outcome, normalised over the group. Q_{i,t} = rho_{i,t} * gamma^(T - t) * R_i with the outcome R_i.
    rho_{i,t} = clip(h_{i,t} / mean of h over the trajectory), h_{i,t} = exp(b_{i,t} / temperature), where b is the mean
    log-probability of the turn's tokens with the outcome in the prompt. Immediate rewards are not read. A group of one
    has no hindsight part.

    The paper leaves the prompt open; ours is `hindsight.note`.
    """
    belief = needed(table.hindsight_logprob, "hindsight_logprob") / settings.temperature
    ratio = np.clip(_relative(table, belief), *settings.clip)
    value = ratio * settings.gamma**table.turns_left * table.score[table.trajectory]
    following = np.where(table.turns_left > 0, np.append(value[1:], 0.0), value)
    value = settings.smooth * value + (1 - settings.smooth) * following
    step = normalise(
        value,
        table.turn_group,
        std=settings.std,
        eps=settings.eps,
        members=np.bincount(table.group[table.length > 0], minlength=table.n_groups),
    )
    if settings.protect:
        step = np.where((table.score > settings.success)[table.trajectory], np.maximum(step, 0.0), step)
    episode = group_advantage(table, table.score, settings)[table.trajectory]
    step *= settings.omega
    metrics = {"hindsight_ratio_spread": float(ratio.std())} if table.n_turns else {}
    return Advantages(episode + step, parts={"episode": episode, "hindsight": step}, metrics=metrics)


def _relative(table: CreditTable, belief: Floats) -> Floats:
    """exp(belief), over its mean in the trajectory [n_turns]. Beliefs are shifted first: exp of -1000 is 0."""
    highest = np.full(table.n_trajectories, -np.inf)
    np.maximum.at(highest, table.trajectory, belief)
    likely: Floats = np.exp(belief - highest[table.trajectory])
    mean = np.bincount(table.trajectory, likely, table.n_trajectories) / np.maximum(table.length, 1)
    relative: Floats = likely / mean[table.trajectory]
    return relative
