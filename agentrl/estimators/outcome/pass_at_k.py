"""Pass@k: only the best of the group is credited, by how much it is better than the second."""

from __future__ import annotations

import numpy as np

from agentrl.estimators.estimator import Advantages, estimator
from agentrl.estimators.normalise import normalise
from agentrl.estimators.score import ScoredNormalisation, broadcast, reads_score, settle_singletons
from agentrl.estimators.table import CreditTable


@estimator(
    granularity="trajectory",
    source="arXiv:2503.19595; volcengine/verl@b178a3c core_algos.compute_grpo_passk_outcome_advantage",
    certainty="A",
    reads=reads_score,
)
def pass_at_k(table: CreditTable, settings: ScoredNormalisation) -> Advantages:
    """A_i = (S_i - second best) / (std + eps) for the best of the group, 0 for all others.

    If two are equally best, the difference is 0, and no trajectory is credited. verl refuses groups of one
    (`singleton: error`).
    """
    score = settings.scores(table)
    order = np.lexsort((-score, table.group))
    ordered, groups = score[order], table.group[order]
    first = np.searchsorted(groups, np.arange(table.n_groups))
    several = table.group_size > 1
    best, margin = order[first[several]], ordered[first[several]] - ordered[first[several] + 1]

    # The deviation scales every difference inside a group equally: take the factor from the normaliser.
    scaled = normalise(
        score, table.group, table.trajectory_weights(settings.weighting), std=settings.std, eps=settings.eps
    )
    second = order[first[several] + 1]
    advantage = np.zeros(table.n_trajectories)
    advantage[best] = np.where(margin > 0, scaled[best] - scaled[second], 0.0)
    return broadcast(table, settle_singletons(table, advantage, score, settings.singleton))
