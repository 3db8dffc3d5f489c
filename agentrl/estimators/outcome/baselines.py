"""Score minus a baseline of the group: RLOO, OPO, GPG, AsymRE, OPMD. They differ in the baseline and in one factor."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from agentrl.estimators.estimator import Advantages, estimator
from agentrl.estimators.score import (
    ScoredBaseline,
    broadcast,
    centred_score,
    reads_score,
    reads_verdict,
    settle_singletons,
)
from agentrl.estimators.table import CreditTable, Weighting


@estimator(
    granularity="trajectory",
    source="arXiv:2402.14740; volcengine/verl@b178a3c core_algos.compute_rloo_outcome_advantage",
    certainty="A",
    reads=reads_score,
)
def rloo(table: CreditTable, settings: ScoredBaseline) -> Advantages:
    """A_i = S_i - mean of the OTHER members' scores = W / (W - w_i) * (S_i - mean).

    W is the sum of the group's weights; with `weighting: trajectory` the factor is N / (N - 1). A group of one is 0 in
    verl's vectorised code and the raw score in its loop.
    """
    score = settings.scores(table)
    weights = table.trajectory_weights(settings.weighting)
    total = np.bincount(table.group, weights)[table.group]
    others = total - weights
    factor = np.where(others > 0, total / np.where(others > 0, others, 1), 1)
    return broadcast(table, factor * centred_score(table, score, settings))


class OpoSettings(ScoredBaseline):
    """Settings of `opo`. `weighting: token` IS the method; others make it `dr_grpo`."""

    weighting: Weighting = "token"


@estimator(
    granularity="trajectory",
    source="arXiv:2505.23585; volcengine/verl@b178a3c core_algos.compute_opo_outcome_advantage",
    certainty="A",
    reads=reads_score,
)
def opo(table: CreditTable, settings: OpoSettings) -> Advantages:
    """A_i = S_i - sum(l_i * S_i) / sum(l_i), l_i the sampled tokens: the baseline of least variance if the squared
    gradient grows with length."""
    return broadcast(table, centred_score(table, settings.scores(table), settings))


@estimator(
    granularity="trajectory",
    source="arXiv:2504.02546; volcengine/verl@b178a3c core_algos.compute_gpg_outcome_advantage",
    certainty="A",
    reads=reads_verdict,
)
def gpg(table: CreditTable, settings: ScoredBaseline) -> Advantages:
    """A_i = alpha * (S_i - mean), alpha = trajectories of the batch / those whose score is not 0.

    alpha compensates for trajectories without signal. It uses the whole batch, and depends on the zero of the scores.
    """
    score = settings.scores(table)
    alpha = len(score) / max(int(np.count_nonzero(score)), 1)
    return broadcast(table, alpha * centred_score(table, score, settings))


class AsymreSettings(ScoredBaseline):
    """Settings of `asymre`.

    Attributes:
        delta: added to the baseline. Below 0, successes of stale policies count more than failures.
    """

    delta: float = Field(-0.1, allow_inf_nan=False)


@estimator(
    granularity="trajectory",
    source="arXiv:2506.20520; modelscope/Trinity-RFT@d4baca6 asymre_advantage",
    certainty="A",
    reads=reads_score,
)
def asymre(table: CreditTable, settings: AsymreSettings) -> Advantages:
    """A_i = S_i - (mean + delta), for off-policy REINFORCE: a loss without importance ratio.

    Only with `train.loss: reinforce` is it AsymRE. A group without variance gets -delta everywhere, by intention. The
    baseline of a group of one is 0 in the authors' code (`singleton: raw`).
    """
    score = settings.scores(table)
    advantage = centred_score(table, score, settings) - settings.delta
    return broadcast(table, settle_singletons(table, advantage, score, settings.singleton))


class OpmdSettings(ScoredBaseline):
    """Settings of `opmd`.

    Attributes:
        baseline: `mean`, or `logavgexp`: tau * log mean exp(S / tau), the soft maximum of the regularised problem.
        tau: temperature of the soft maximum. The published loss divides by 1 + tau, which is a factor of the learning
            rate and not applied here.
    """

    baseline: Literal["mean", "logavgexp"] = "mean"
    tau: float = Field(1.0, gt=0, allow_inf_nan=False)


@estimator(
    granularity="trajectory",
    source="modelscope/Trinity-RFT@1542f4b opmd_advantage (online policy mirror descent)",
    certainty="A",
    reads=reads_score,
)
def opmd(table: CreditTable, settings: OpmdSettings) -> Advantages:
    """A_i = S_i - b, b the mean or the soft maximum of the group's scores. The baseline of a group of one is 0 upstream
    (`singleton: raw`).

    Only with `train.loss: reinforce` is it OPMD. The authors' pairwise form is not here.
    """
    score = settings.scores(table)
    if settings.baseline == "mean":
        return broadcast(table, centred_score(table, score, settings))
    weights = table.trajectory_weights(settings.weighting)
    top = np.full(table.n_groups, -np.inf)
    np.maximum.at(top, table.group, score)  # so that the exponentials cannot overflow
    above = (score - top[table.group]) / settings.tau
    total = np.bincount(table.group, weights)
    mean = np.bincount(table.group, weights * np.exp(above)) / np.where(total > 0, total, 1)
    soft = settings.tau * np.log(np.where(mean > 0, mean, 1))
    advantage = settings.tau * above - soft[table.group]
    return broadcast(table, settle_singletons(table, advantage, score, settings.singleton))
