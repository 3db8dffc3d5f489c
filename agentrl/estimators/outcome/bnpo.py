"""BNPO: the group's scores are scaled by a Beta density that follows how hard the batch's tasks are."""

from __future__ import annotations

import math

import numpy as np

from agentrl.estimators.arrays import Bools, Floats
from agentrl.estimators.estimator import Advantages, estimator
from agentrl.estimators.score import ScoredBaseline, broadcast, centred_score, reads_verdict, settle_singletons
from agentrl.estimators.table import CreditTable
from agentrl.types.errors import CreditError

CAP = 1e6
"""The authors' bound of the weight 1 / density."""


@estimator(
    granularity="trajectory",
    source="arXiv:2506.02864; changyi7231/BNPO@a9c51b9 recipe/bnpo/src/bnpo_ray_trainer.py",
    certainty="A",
    reads=reads_verdict,
    in_unit=True,
)
def bnpo(table: CreditTable, settings: ScoredBaseline) -> Advantages:
    """A_i = min(1 / Beta(p_g; alpha, beta), 1e6) * (S_i - p_g), p_g the mean score of group g.

    With m and v the mean and sample variance of p over the batch's groups and c = m * (1 - m) / v - 1:
    alpha = max(1, 1 + c * m / 3), beta = max(1, 1 + c * (1 - m) / 3). Where v is 0 (one group, or all as hard) the
    weight is 1; the authors' code divides by 0 there.

    Groups of one are left out of m and v. `singleton: raw` is the authors' code: p = 0 for a group of one, which
    counts in m and v, and whose success is then often worth the cap of 1,000,000. (TRL's `loss_type="bnpo"` is
    something else: a token mean over the batch.) The paper's decomposition for several rewards is not implemented.

    Raises:
        CreditError: a score is not in [0, 1].
    """
    score = settings.scores(table)
    if len(score) and not (score.min() >= 0 and score.max() <= 1):
        at = int(np.argmax((score < 0) | (score > 1)))
        raise CreditError(
            f"score {score[at]} is not in [0, 1], which bnpo's Beta distribution needs",
            place=f"episode {table.episode_ids[at]}",
            remedy="scale the rewards to [0, 1], or take another estimator (grpo, rloo)",
        )
    centred = centred_score(table, score, settings)
    several = table.group_size > 1
    weights = table.trajectory_weights(settings.weighting)
    total = np.bincount(table.group, weights)
    p = np.bincount(table.group, weights * score) / np.where(total > 0, total, 1)
    p[~several] = 0.0
    weight = beta_weights(p, several | (settings.singleton == "raw"))[table.group]
    return broadcast(table, settle_singletons(table, weight * centred, weight * score, settings.singleton))


def beta_weights(p: Floats, counted: Bools) -> Floats:
    """1 / density of every group's p under the Beta that fits the `counted` groups, at most `CAP` [n_groups]."""
    known = p[counted]
    v = known.var(ddof=1) if len(known) > 1 else 0.0
    if v <= 1e-8:  # as good as equal: a density so narrow would only magnify rounding
        return np.ones(len(p))
    m = known.mean()
    spread = m * (1 - m) / v - 1
    a, b = max(1.0, 1 + spread * m / 3), max(1.0, 1 + spread * (1 - m) / 3)
    # In logarithms: means that lie close together make a and b so large that both factors would be 0.
    log_beta = math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
    log_density = _times_log(a - 1, p) + _times_log(b - 1, 1 - p) - log_beta
    return np.exp(np.minimum(-log_density, math.log(CAP)))


def _times_log(factor: float, x: Floats) -> Floats:
    """factor * log(x), and 0 for factor 0."""
    with np.errstate(divide="ignore"):
        return factor * np.log(x) if factor else np.zeros(len(x))
