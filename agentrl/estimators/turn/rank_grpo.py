"""Rank-GRPO: each rank of a list gets its return, against those of the same rank in the group."""

from __future__ import annotations

from typing import Literal

import numpy as np

from agentrl.estimators.arrays import Floats, Ints, combine, discounted
from agentrl.estimators.estimator import Advantages, estimator
from agentrl.estimators.normalise import Discount, Normalisation, normalise
from agentrl.estimators.table import CreditTable
from agentrl.estimators.turn.grpo_process import step_ends, step_rewards


class RankGrpoSettings(Normalisation):
    """Settings of `rank_grpo`. Every trajectory counts once at a rank, so `weighting` can only be `trajectory`.

    Attributes:
        gamma: discount per rank. 1: the sum of what follows, the authors' `log_decay` if spans hold the terms of a
            DCG. 0: the rank's own reward, their `exp_inf`.
    """

    weighting: Literal["trajectory"] = "trajectory"
    gamma: Discount = 1.0


@estimator(
    granularity="token",
    source="arXiv:2510.20150; yaochenzhu/Rank-GRPO@0808d82 rank_grpo_trainer.py",
    certainty="A",
    reads=["outcome", "turns", "tokens"],
)
def rank_grpo(table: CreditTable, settings: RankGrpoSettings) -> Advantages:
    """A_k = (G_k - mean) / (std + eps), G_k = r_k + gamma * G_{k+1}: the return of rank k against that of the same
    rank in the group's other episodes.

    A rank is a span of a reply with a reward (`agentrl.rewards.Span`), or a turn without any; ranks are numbered within
    their turn. An episode without the rank counts as 0: its list ended before. The tokens of a rank begin after the
    rank before it; what follows the last one gets 0. A turn's other rewards, and on the last turn the outcome, belong
    to its last rank.

    Differs from the code: episodes of several turns, whose returns go on into the next turn; their `eps` is 1e-4; their
    bonus for the end of a list of the right length is a matter of rewards here.
    """
    ends = step_ends(table)
    turn = table.token_turn[ends]
    trajectory, rank = table.trajectory[turn], np.arange(len(ends)) - np.searchsorted(turn, turn)
    left = np.searchsorted(trajectory, trajectory, side="right") - np.arange(len(ends)) - 1
    place = combine(combine(table.group[trajectory], table.turn[turn]), rank)
    first = np.unique(place, return_index=True)[1]
    group = table.group[trajectory[first]]
    # A further value of each place stands for the episodes that do not have it. It comes first: `normalise` subtracts
    # the last one, and equal values of the others then give exactly zero.
    advantage = normalise(
        np.append(np.zeros(len(first)), discounted(step_rewards(table, ends), left, settings.gamma)),
        np.append(np.arange(len(first)), place),
        np.append(table.group_size[group] - np.bincount(place), np.ones(len(ends))),
        std=settings.std,
        singleton=settings.singleton,
        eps=settings.eps,
        members=table.group_size[group],
        names=[table.group_ids[each] for each in group],
    )[len(first) :]
    token = _on_tokens(table, advantage, ends)
    return Advantages(table.turn_mean(token), token)


def _on_tokens(table: CreditTable, values: Floats, ends: Ints) -> Floats:
    """Values of steps on their tokens: those after the step before; 0 after the last step of a turn [n_tokens]."""
    step = np.searchsorted(ends, np.arange(table.n_tokens))
    inside = step < len(ends)
    inside[inside] = table.token_turn[ends[step[inside]]] == table.token_turn[inside]
    token = np.zeros(table.n_tokens)
    token[inside] = values[step[inside]]
    return token
