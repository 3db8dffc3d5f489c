"""DRACO: a judge's citations move the advantage of a trajectory to the turns that earned it."""

from __future__ import annotations

import numpy as np

from agentrl.estimators.estimator import Advantages, estimator
from agentrl.estimators.score import ScoredNormalisation, group_advantage, reads_score
from agentrl.estimators.table import CreditTable, needed


class DracoSettings(ScoredNormalisation):
    """Settings of `draco`: those of the trajectory's advantage."""


@estimator(
    granularity="turn",
    source="arXiv:2609.04094 Eq. 3 to 7, as transcribed by others",
    certainty="B",
    needs=["process"],
    reads=reads_score,
)
def draco(table: CreditTable, settings: DracoSettings) -> Advantages:
    """a_j = A_i * N * w_j / (n_j * sum of w over the turns), for the turn j of trajectory i.

    A_i is the score, normalised over the group. w_j is the quality Q_j of the turn (column `process`, which
    `cited_quality` fills) if A_i >= 0, else 1 - Q_j. n_j is the number of tokens of the turn, and N that of the
    trajectory: the sum of n_j a_j is N A_i. Where all w are 0 every turn gets A_i. Turns that are not trained are left
    out.
    """
    quality = needed(table.process, "process")
    advantage = group_advantage(table, settings.scores(table), settings)[table.trajectory]
    trained = table.tokens > 0
    weight = np.where(trained, np.where(advantage >= 0, quality, 1.0 - quality), 0.0)
    total, tokens = (
        np.bincount(table.trajectory, each, table.n_trajectories)[table.trajectory] for each in (weight, table.tokens)
    )
    moved = advantage * tokens * weight / (np.maximum(table.tokens, 1) * np.where(total > 0, total, 1.0))
    turn = np.where(trained & (total > 0), moved, advantage)
    metrics = {"moved_credit": float(np.abs(turn - advantage)[trained].mean())} if trained.any() else {}
    return Advantages(turn, parts={"episode": advantage, "moved": turn - advantage}, metrics=metrics)
