"""GRPO with process supervision: each token gets the normalised rewards of the steps that end there or later."""

from __future__ import annotations

import numpy as np

from agentrl.estimators.arrays import Floats, Ints, discounted
from agentrl.estimators.estimator import Advantages, estimator
from agentrl.estimators.normalise import Normalisation, normalise
from agentrl.estimators.table import CreditTable, Weighting


class GrpoProcessSettings(Normalisation):
    """Settings of `grpo_process`. `weighting` counts steps: `turn` each once, as published; `trajectory` those of a
    trajectory together once; `token` each by its tokens."""

    weighting: Weighting = "turn"


@estimator(
    granularity="token",
    source="DeepSeekMath, arXiv:2402.03300, section 4.1.3 (its code is not published)",
    certainty="B",
    reads=["outcome", "turns", "tokens"],
)
def grpo_process(table: CreditTable, settings: GrpoProcessSettings) -> Advantages:
    """A_k = sum over the steps j that end at token k or later of (r_j - mean) / (std + eps).

    A step is a span of a reply with a reward (`agentrl.rewards.Span`), or a turn without any. Mean and standard
    deviation are over all steps of the group. A turn's other rewards, and on the last turn the outcome, belong to its
    last step.

    Differs from the paper: episodes of several turns; steps are what a reward function marks, not those of a reward
    model; spans that end at one token are one step.
    """
    ends = step_ends(table)
    owner = table.trajectory[table.token_turn[ends]]
    step = np.zeros(table.n_tokens)
    step[ends] = normalise(
        step_rewards(table, ends),
        table.group[owner],
        _weights(table, ends, owner, settings.weighting),
        std=settings.std,
        singleton=settings.singleton,
        eps=settings.eps,
        members=np.bincount(table.group[np.unique(owner)], minlength=table.n_groups),
        names=table.group_ids,
    )
    token = discounted(step, table.token_left, 1.0)
    return Advantages(table.turn_mean(token), token)


def step_ends(table: CreditTable) -> Ints:
    """The last tokens of all steps, in order: spans, and turns without any."""
    ends = np.zeros(table.n_tokens, np.bool_) if table.span_end is None else table.span_end.copy()
    unmarked = (np.bincount(table.token_turn, ends, table.n_turns) == 0) & (table.tokens > 0)
    ends[table.token_offsets[1:][unmarked] - 1] = True
    return np.flatnonzero(ends)


def step_rewards(table: CreditTable, ends: Ints) -> Floats:
    """The reward of each step, with what its turn earned outside of spans if it is the turn's last [n_steps]."""
    reward, rest = table.placed(table.step_reward)
    # The reward of a turn without tokens goes to the step before it, if the trajectory has one.
    before = np.searchsorted(ends, table.token_offsets[1:]) - 1
    first = np.searchsorted(ends, table.token_offsets[table.offsets[:-1]])[table.trajectory]
    held = before >= first
    np.add.at(reward, ends[before[held]], rest[held])
    return reward[ends]


def _weights(table: CreditTable, ends: Ints, owner: Ints, weighting: Weighting) -> Floats:
    """The weight of each step in the statistics of its group [n_steps]."""
    if weighting == "turn":
        return np.ones(len(ends))
    if weighting == "trajectory":
        return 1.0 / np.bincount(owner)[owner]
    begins = np.maximum(np.append(-1, ends[:-1]) + 1, table.token_offsets[table.token_turn[ends]])
    return np.asarray(ends - begins + 1, np.float64)
