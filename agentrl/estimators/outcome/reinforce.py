"""REINFORCE variants that whiten over the batch or weigh successes and failures: the only baseline is the batch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from agentrl.estimators.arrays import Floats, Ints, discounted
from agentrl.estimators.estimator import Advantages, Need, Reward, estimator
from agentrl.estimators.normalise import Discount, Std, whiten
from agentrl.estimators.score import ScoredBaseline, ScoreSettings, broadcast, centred_score, reads_score, reads_verdict
from agentrl.estimators.table import CreditTable, Weighting, needed


class Whitening(BaseModel):
    """Settings of a whitening over the batch.

    Attributes:
        weighting: the unit of mean and variance. Published codes count tokens.
        std: variance with Bessel's correction (verl), of the population (OpenRLHF), or only subtract the mean.
        eps: added to the variance, under the root.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    weighting: Weighting = "token"
    std: Std = "sample"
    eps: float = Field(1e-8, ge=0, allow_inf_nan=False)


class ReinforcePPSettings(Whitening):
    """Settings of `reinforce_pp`.

    Attributes:
        gamma: discount per TOKEN.
        score: `total`: immediate rewards count at the end of their turn. `outcome`: only the last turn is rewarded.
        observations: `skip`: the return passes over observation tokens, undiscounted. `count`: they are positions like
            any other, in the discount and in the whitening. `reset`: as verl with masked observations: the return
            restarts at every observation, so that only the last turn gets the outcome. Not recommended; for
            comparisons.
    """

    gamma: Discount = 1.0
    score: Literal["outcome", "total"] = "total"
    observations: Literal["skip", "count", "reset"] = "skip"


def _needs(settings: ReinforcePPSettings) -> Iterable[Need]:
    return () if settings.observations == "skip" else ("observation_tokens",)


def _reads(settings: ReinforcePPSettings) -> Iterable[Reward]:
    return ("outcome", "turns", "tokens") if settings.score == "total" else ("outcome", "tokens")


@estimator(
    granularity="token",
    source="arXiv:2501.03262; volcengine/verl@b178a3c core_algos.compute_reinforce_plus_plus_outcome_advantage",
    certainty="A",
    needs=_needs,
    reads=_reads,
)
def reinforce_pp(table: CreditTable, settings: ReinforcePPSettings) -> Advantages:
    """G_k = r_k + gamma * G_{k+1} over sampled tokens, then (G - mean) / sqrt(var + eps) over the batch."""
    skips = settings.observations == "skip"
    observed = np.zeros(table.n_turns, np.int64) if skips else needed(table.observation_tokens, "observation_tokens")
    spans = np.stack([table.tokens, observed], axis=1).ravel()
    sampled = np.repeat(np.tile([True, False], table.n_turns), spans)
    owner = np.repeat(np.repeat(np.arange(table.n_turns), 2), spans)

    rewards = np.zeros(len(sampled))
    rewards[sampled] = token_rewards(table, settings.score)
    final = np.append(table.trajectory[owner][1:] != table.trajectory[owner][:-1], True)
    if settings.observations == "reset":
        final |= sampled & ~np.append(sampled[1:], False)
    ends = np.flatnonzero(final)
    places = np.arange(len(sampled))
    returns = discounted(rewards, ends[np.searchsorted(ends, places)] - places, settings.gamma)

    counted = np.ones(len(sampled), np.bool_) if settings.observations == "count" else sampled
    whitened = np.zeros(len(sampled))
    weights = _shares(table, owner[counted], settings.weighting)
    whitened[counted] = whiten(returns[counted], weights, std=settings.std, eps=settings.eps)
    token = whitened[sampled]
    return Advantages(table.turn_mean(token), token)


def token_rewards(table: CreditTable, score: Literal["outcome", "total"]) -> Floats:
    """Rewards of turns, on the last sampled token of the turn or of its span, plus the rewards of tokens [n_tokens].

    A turn without tokens gives its reward to the token before it in the trajectory, or to the first after it; a
    trajectory without tokens cannot be credited.
    """
    outcome = table.step_reward - table.reward
    rewards, steps = table.placed(table.step_reward) if score == "total" else (table.on_tokens(), outcome)
    start, end = table.token_offsets[table.offsets[:-1]], table.token_offsets[table.offsets[1:]]
    spoken = (end > start)[table.trajectory]
    last = np.maximum(table.token_offsets[1:] - 1, start[table.trajectory])
    np.add.at(rewards, last[spoken], steps[spoken])
    return rewards


def _shares(table: CreditTable, owner: Ints, weighting: Weighting) -> Floats:
    """The weight of each position; `owner` is its turn [n_positions]."""
    if weighting == "token":
        return np.ones(len(owner))
    unit = owner if weighting == "turn" else table.trajectory[owner]
    return np.asarray(1.0 / np.bincount(unit)[unit], np.float64)


class ReinforcePPBaselineSettings(Whitening, ScoredBaseline):
    """Settings of `reinforce_pp_baseline`. `weighting` is about the whitening; the baseline counts trajectories."""

    weighting: Weighting = "token"


@estimator(
    granularity="trajectory",
    source="arXiv:2501.03262; volcengine/verl@b178a3c core_algos "
    "compute_reinforce_plus_plus_baseline_outcome_advantage",
    certainty="A",
    reads=reads_score,
)
def reinforce_pp_baseline(table: CreditTable, settings: ReinforcePPBaselineSettings) -> Advantages:
    """a_i = S_i - mean over the group, then (a - mean) / sqrt(var + eps) over the batch.

    If lengths differ, the second mean is not 0: zero-variance groups then get a small common advantage.
    """
    plain = ScoredBaseline(singleton=settings.singleton)
    advantage = centred_score(table, settings.scores(table), plain)
    weights = table.trajectory_weights(settings.weighting)
    return broadcast(table, whiten(advantage, weights, std=settings.std, eps=settings.eps))


class WReinforceSettings(ScoreSettings):
    """Settings of `w_reinforce`.

    Attributes:
        positive: advantage of a correct trajectory. 0 is negative sample reinforcement (`nsr`).
        negative: the advantage of a wrong one is minus this. `positive: 1, negative: 0` is positive sample
            reinforcement.
        correct_above: a trajectory is correct if its score is above this. The paper's rewards are 0 and 1.
    """

    positive: float = Field(0.1, ge=0, allow_inf_nan=False)
    negative: float = Field(1.0, ge=0, allow_inf_nan=False)
    correct_above: float = Field(0.5, allow_inf_nan=False)


class NsrSettings(ScoreSettings):
    """Settings of `nsr`.

    Attributes:
        correct_above: a trajectory is correct if its score is above this.
    """

    correct_above: float = Field(0.5, allow_inf_nan=False)


@estimator(
    granularity="trajectory",
    source="arXiv:2506.01347; TianHongZXY/RLVR-Decomposed@a5d4e7c",
    certainty="A",
    reads=reads_verdict,
)
def w_reinforce(table: CreditTable, settings: WReinforceSettings) -> Advantages:
    """A_i = positive (0.1) if correct, else -negative (-1). No baseline, no group."""
    correct = settings.scores(table) > settings.correct_above
    return broadcast(table, np.where(correct, settings.positive, -settings.negative))


@estimator(
    granularity="trajectory",
    source="arXiv:2506.01347; TianHongZXY/RLVR-Decomposed@a5d4e7c",
    certainty="A",
    reads=reads_verdict,
)
def nsr(table: CreditTable, settings: NsrSettings) -> Advantages:
    """A_i = 0 if correct, else -1: only wrong trajectories give a signal."""
    return broadcast(table, np.where(settings.scores(table) > settings.correct_above, 0.0, -1.0))
