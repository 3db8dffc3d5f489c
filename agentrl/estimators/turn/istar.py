"""iStar: rewards of turns from a reward model that learned which episodes are better, beside the outcome."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from agentrl.estimators.arrays import Floats
from agentrl.estimators.estimator import Advantages, estimator
from agentrl.estimators.normalise import normalise
from agentrl.estimators.score import ScoredNormalisation, group_advantage, reads_score
from agentrl.estimators.table import CreditTable, needed


class IstarSettings(ScoredNormalisation):
    """Settings of `istar`, and of the `grpo` advantage that is its episode part.

    Attributes:
        weight: of the step part (the authors' alpha).
    """

    weight: float = Field(1.0, ge=0, allow_inf_nan=False)


@estimator(
    granularity="turn",
    source="arXiv:2509.19199, from a summary with its formulas",
    certainty="C",
    needs=["prm_logprob", "behaviour_logprob"],
    reads=reads_score,
)
def istar(table: CreditTable, settings: IstarSettings) -> Advantages:
    """A_t = A^E + weight * A^S_t.

    A^E is the outcome, normalised over the group. A^S_t is r_t, normalised over all turns of the group: the sum over
    the tokens of the turn of their log-probability under the reward model less that under the policy that sampled them.
    Train the model with `train.reward_model: {objective: preference, reference: policy}`.

    Differs from the authors' method: the model that credits an iteration has learned from the ones before it, where
    theirs has learned from the same episodes already.
    """
    gap = needed(table.prm_logprob, "prm_logprob") - needed(table.behaviour_logprob, "behaviour_logprob")
    reward = np.bincount(table.token_turn, gap, table.n_turns).astype(np.float64)
    step = settings.weight * _of_turns(table, reward, settings)
    episode = group_advantage(table, settings.scores(table), settings)[table.trajectory]
    return Advantages(episode + step, parts={"episode": episode, "step": step})


def _of_turns(table: CreditTable, reward: Floats, settings: IstarSettings) -> Floats:
    """The rewards of turns, normalised over their group; 0 without tokens, and in a group of one [n_turns]."""
    counts = (table.tokens > 0) & (table.group_size[table.turn_group] > 1)
    step = np.zeros(table.n_turns)
    step[counts] = normalise(reward[counts], table.turn_group[counts], std=settings.std, eps=settings.eps)
    return step
