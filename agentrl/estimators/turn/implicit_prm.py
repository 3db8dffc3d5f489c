"""PRIME: rewards of tokens from a reward model that was trained on outcomes only."""

from __future__ import annotations

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from agentrl.estimators.arrays import Floats, Ints, discounted
from agentrl.estimators.estimator import Advantages, estimator
from agentrl.estimators.normalise import whiten
from agentrl.estimators.table import CreditTable, needed
from agentrl.estimators.turn.gae import WHITEN_EPS


class ImplicitPrmSettings(BaseModel):
    """Settings of `implicit_prm`.

    Attributes:
        beta: scale of the reward model's log-ratio.
        outcome_weight: weight of the outcome relative to the process rewards.
        scale: divide a trajectory's process rewards by the largest |sum over its last tokens|.
        whiten: whiten the batch's advantages, every token counting once.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    beta: float = Field(0.05, gt=0, allow_inf_nan=False)
    outcome_weight: float = Field(5.0, allow_inf_nan=False)
    scale: bool = False
    whiten: bool = True

    @property
    def needs_members(self) -> bool:
        """Both parts are leave-one-out."""
        return True


@estimator(
    granularity="token",
    source="PRIME-RL/PRIME@18ad596 and verl's prime recipe",
    certainty="A",
    needs=["prm_logprob", "ref_logprob"],
    reads=["outcome"],
)
def implicit_prm(table: CreditTable, settings: ImplicitPrmSettings) -> Advantages:
    """A_k = sum over this and the later tokens of leave-one-out process rewards and outcome, then whitened.

    r_k = beta * (log-probability under the reward model - under the reference). A trajectory's process baseline is the
    mean of its own mean token reward and the others', leave-one-out: r_k * n / (n - 1) - sum_i mean_i / (n - 1); the
    outcome is leave-one-out too, on the last token, times its weight. A group of one lacks a baseline and gets 0.
    """
    prm_logprob = needed(table.prm_logprob, "prm_logprob")
    ref_logprob = needed(table.ref_logprob, "ref_logprob")
    owner = table.trajectory[table.token_turn]
    reward = settings.beta * (prm_logprob - ref_logprob)
    if settings.scale:
        largest = np.zeros(table.n_trajectories)
        np.maximum.at(largest, owner, np.abs(discounted(reward, table.token_left, 1.0)))
        reward = reward / np.where(largest > 0, largest, 1.0)[owner]
    counts = np.bincount(owner, minlength=table.n_trajectories)
    mean = np.bincount(owner, reward, table.n_trajectories) / np.maximum(counts, 1)
    process = _leave_one_out(table, reward, owner, mean)
    outcome = settings.outcome_weight * _leave_one_out(table, table.score[owner], owner, table.score)
    # Summed over later tokens, an outcome on the last token is that outcome everywhere.
    token = discounted(process, table.token_left, 1.0) + outcome
    if settings.whiten:
        token = whiten(token, np.ones(len(token)), std="sample", eps=WHITEN_EPS)
    return Advantages(table.turn_mean(token), token)


def _leave_one_out(table: CreditTable, values: Floats, owner: Ints, of_trajectory: Floats) -> Floats:
    """v * n / (n - 1) - sum over the group / (n - 1); 0 in a group of one [n_tokens]."""
    size = table.group_size[table.group][owner]
    total = np.bincount(table.group, of_trajectory, table.n_groups)[table.group][owner]
    return np.where(size > 1, (values * size - total) / np.maximum(size - 1, 1), 0.0)
