"""SPRO: the policy's own log-ratio to the reference as process reward, compared step by step within the group."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from agentrl.estimators.arrays import Floats, Ints, combine
from agentrl.estimators.estimator import Advantages, estimator
from agentrl.estimators.normalise import centre
from agentrl.estimators.score import ScoredNormalisation, group_advantage, reads_score
from agentrl.estimators.table import CreditTable, needed


class SproSettings(ScoredNormalisation):
    """Settings of `spro`, and of the `grpo` advantage of the outcome.

    Attributes:
        beta: scale of the log-ratio.
        step: what is compared with its like in the group's other trajectories: the sampled token with the same index
            (the paper), or the turn with the same index, by the sum at its end.
    """

    beta: float = Field(0.05, gt=0, allow_inf_nan=False)
    step: Literal["token", "turn"] = "token"


@estimator(
    granularity="token",
    source="arXiv:2507.01551 (Eq. 11 to 13), from reviews and ports; no code of the authors",
    certainty="C",
    needs=["behaviour_logprob", "ref_logprob"],
    reads=reads_score,
)
def spro(table: CreditTable, settings: SproSettings) -> Advantages:
    """A_t = outcome + (C_t - mean of C_t over the trajectories of the group that have a step t).

    C_t = beta * sum_{j <= t} (log-probability under the policy - under the reference): the process rewards up to step
    t. The mean is masked: those that ended before t do not count, and a step that one trajectory alone has gives 0. The
    outcome is normalised as in `grpo`.

    Differs from the paper: the policy's log-probabilities are those of the engine that sampled the tokens.
    """
    policy, reference = needed(table.behaviour_logprob, "behaviour_logprob"), needed(table.ref_logprob, "ref_logprob")
    reward = _cumulative(table, settings.beta * (policy - reference))
    process = _compared(table, reward, settings.step)
    outcome = group_advantage(table, settings.scores(table), settings)[table.trajectory][table.token_turn]
    parts = {"outcome": table.turn_mean(outcome), "process": table.turn_mean(process)}
    return Advantages(parts["outcome"] + parts["process"], outcome + process, parts=parts)


def _cumulative(table: CreditTable, reward: Floats) -> Floats:
    """Sum of the rewards of a trajectory up to each token [n_tokens]."""
    total = np.concatenate([[0.0], np.cumsum(reward)])
    begins = table.token_offsets[table.offsets[:-1]]
    return np.asarray(total[1:] - total[begins][table.trajectory[table.token_turn]], np.float64)


def _compared(table: CreditTable, reward: Floats, step: Literal["token", "turn"]) -> Floats:
    """The sums less the mean at the same step of the group [n_tokens]."""
    owner = table.trajectory[table.token_turn]
    if step == "token":
        place = np.arange(table.n_tokens) - table.token_offsets[table.offsets[:-1]][owner]
        return _centred(reward, combine(table.group[owner], place))
    spoken = np.flatnonzero(table.tokens)
    ends = reward[table.token_offsets[spoken + 1] - 1]
    found = np.zeros(table.n_turns)
    found[spoken] = _centred(ends, combine(table.turn_group[spoken], table.turn[spoken]))
    return found[table.token_turn]


def _centred(values: Floats, pool: Ints) -> Floats:
    return centre(values, pool, np.ones(len(values)))
