"""RTMC: the mean return of an action in its state, less that of the state, over the tree of a group's rollouts."""

from __future__ import annotations

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from agentrl.estimators.arrays import Bools, Floats, Ints, combine
from agentrl.estimators.estimator import Advantages, estimator
from agentrl.estimators.normalise import Discount, Std, centre, deviation
from agentrl.estimators.table import CreditTable, needed
from agentrl.estimators.turn.gigpo import anchor_groups


class RtmcSettings(BaseModel):
    """Settings of `rtmc`.

    Attributes:
        gamma: discount per turn of the returns.
        prior: number of visits that the group's mean reward counts for in the value of a state. 0: the plain mean.
        std: divide by the deviation of the group's advantages, without a shift, or not at all.
        eps: added to the deviation.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    gamma: Discount = 0.99
    prior: float = Field(2.0, ge=0, allow_inf_nan=False)
    std: Std = "population"
    eps: float = Field(1e-6, ge=0, allow_inf_nan=False)

    @property
    def needs_members(self) -> bool:
        """A group of one has no second branch."""
        return True


@estimator(
    granularity="turn",
    source="arXiv:2604.11037 (Eq. 11), as ported in alexngai/prime-rl-fork@60d8d48 rtmc_sig.py; no code of the authors",
    certainty="B",
    needs=["state", "action"],
    reads=["outcome", "turns"],
)
def rtmc(table: CreditTable, settings: RtmcSettings) -> Advantages:
    """A_t = Q(s_t, a_t) - V'(s_t), over the deviation of the group.

    Q(s, a) is the mean discounted return of the rollouts of the group that did a in s, V(s) that of all in s; a rollout
    that does the same in the same state again counts with its first visit. V'(s) = (N(s) V(s) + prior * b) / (N(s) +
    prior), b the mean reward of the group, which is not discounted. A turn without a state key has a state of its own,
    so that it is compared with b. A group of one gets 0.

    Differs from the paper: states and actions are the keys that tools and agents give and the calls of the turn, where
    the authors write signatures of files viewed and changed.
    """
    state = _states(table)
    pair = combine(state, needed(table.action, "action"))
    first = _first_visits(table, pair)
    returns = table.returns(settings.gamma)
    visits = np.bincount(state[first])
    base = np.bincount(table.group, table.total_reward, table.n_groups) / np.maximum(table.group_size, 1)
    group_of = np.zeros(len(visits), np.int64)
    group_of[state] = table.turn_group
    value = np.bincount(state[first], returns[first]) + settings.prior * base[group_of]
    value /= visits + settings.prior
    quality = np.bincount(pair[first], returns[first]) / np.bincount(pair[first])
    step = _scaled(table, quality[pair] - value[state], settings)
    metrics = {"step_group_size": float(visits.mean()), "single_step_groups": float(np.mean(visits == 1))}
    return Advantages(step, parts={"step": step}, metrics=metrics)


def _states(table: CreditTable) -> Ints:
    """Node of every turn, without gaps; each turn without a state key is one of its own [n_turns]."""
    node = anchor_groups(table)
    lone = np.flatnonzero(node < 0)
    node[lone] = node.max(initial=-1) + 1 + np.arange(len(lone))
    return node


def _first_visits(table: CreditTable, pair: Ints) -> Bools:
    """True for the first turn of a trajectory that did this in this state [n_turns]."""
    first = np.zeros(table.n_turns, np.bool_)
    first[np.unique(combine(table.trajectory, pair), return_index=True)[1]] = True
    return first


def _scaled(table: CreditTable, raw: Floats, settings: RtmcSettings) -> Floats:
    group, ones = table.turn_group, np.ones(table.n_turns)
    scale = deviation(centre(raw, group, ones), group, ones, std=settings.std, eps=settings.eps)
    return np.where((table.group_size == 1)[group], 0.0, raw / scale[group])
