"""GAGPO: generalised advantage estimation over turns, with values of states counted from the group's own returns."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from agentrl.estimators.arrays import Floats
from agentrl.estimators.estimator import Advantages, Need, estimator
from agentrl.estimators.normalise import Discount, Normalisation, Std, deviation, normalise
from agentrl.estimators.score import group_advantage
from agentrl.estimators.state_values import CountedStates, batch_values, visits
from agentrl.estimators.table import CreditTable, needed
from agentrl.estimators.turn.gae import recursion


class GagpoSettings(CountedStates):
    """Settings of `gagpo`.

    Attributes:
        lam: 1 is the plain return minus the value, 0 the one-step difference.
        over: the turns over which the step part is normalised. `batch`: divided by the root mean square of the batch,
            without a shift: a batch that is better than what is remembered gains as a whole. `group`: mean 0 and
            deviation 1 in each group, as in the paper.
        std: divide by the sample deviation (Bessel's correction), by the population deviation, or not at all.
        eps: added to the deviation.
        episode: weight of the episode part, which is that of `gigpo`: the plain sum of the rewards, normalised over the
            group; 0 for a group of one. 0, as published: none.
    """

    lam: Discount = 0.4
    over: Literal["batch", "group"] = "batch"
    std: Std = "sample"
    eps: float = Field(1e-6, ge=0, allow_inf_nan=False)
    episode: float = Field(0.0, ge=0, allow_inf_nan=False)

    @property
    def needs_members(self) -> bool:
        """True if a group of one gets no signal: nobody else met its states, and earlier iterations do not count."""
        return self.decay == 0


def _needs(settings: GagpoSettings) -> list[Need]:
    return ["state", "state_value"] if settings.decay else ["state"]


@estimator(
    granularity="turn",
    source="arXiv:2605.13217, from its abstract and summaries; no code published",
    certainty="C",
    needs=_needs,
    reads=["outcome", "turns"],
)
def gagpo(table: CreditTable, settings: GagpoSettings) -> Advantages:
    """GAE over turns with counted values: A_t = delta_t + gamma * lam * A_{t+1}, over its scale in the batch.

    delta_t = rho_t + gamma * V(s_{t+1}) - V(s_t). V(s) is the mean discounted return of all turns of the task that met
    state s, in the batch (groups of one task count together) or, with `decay`, in earlier iterations, too. It is 0
    after the last turn. Turns without a state key share one state of their task. The value of a state that was met once
    is its own return, and the difference between two of these is 0: states that never recur give no signal, and
    `episode` adds one that needs no states.
    """
    value = needed(table.state_value, "state_value") if settings.decay else batch_values(table, settings.gamma)
    raw = recursion(table.step_reward, value, table.turns_left, settings.gamma, settings.lam)
    step = _scaled(table, raw, settings)
    sizes = visits(table)
    metrics = {"step_group_size": float(sizes.mean()), "single_step_groups": float(np.mean(sizes == 1))}
    if not settings.episode:
        return Advantages(step, parts={"step": step}, metrics=metrics)
    same = Normalisation(std=settings.std, eps=settings.eps)
    episode = settings.episode * group_advantage(table, table.total_reward, same)[table.trajectory]
    return Advantages(episode + step, parts={"episode": episode, "step": step}, metrics=metrics)


def _scaled(table: CreditTable, raw: Floats, settings: GagpoSettings) -> Floats:
    if settings.over == "group":
        return normalise(raw, table.turn_group, std=settings.std, eps=settings.eps)
    one, ones = np.zeros(len(raw), np.int64), np.ones(len(raw))
    # About 0, not the mean: with memory the mean of a batch is news, and a batch without a difference has a scale.
    return raw / deviation(raw, one, ones, std=settings.std, eps=settings.eps)
