"""C3: what a turn is worth beside other turns that were sampled in the same place."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from agentrl.estimators.arrays import Ints
from agentrl.estimators.estimator import Advantages, estimator
from agentrl.estimators.normalise import Std, deviation
from agentrl.estimators.score import ScoreSettings, reads_score
from agentrl.estimators.table import CreditTable, needed
from agentrl.estimators.turn.treepo import subtrees


class C3Settings(ScoreSettings):
    """Settings of `c3`.

    Attributes:
        baseline: of a turn: the mean of the others in its place (`loo`), or of all (`mean`).
        std: divide by the deviation of the place, as the authors' code does on request (`sample`), or not at all.
        eps: added to the deviation.
    """

    baseline: Literal["loo", "mean"] = "loo"
    std: Std = "none"
    eps: float = Field(1e-8, ge=0, allow_inf_nan=False)

    @property
    def needs_members(self) -> bool:
        """True: a turn has alternatives in other episodes of the group, or in forks, which are members of it, too."""
        return True


@estimator(
    granularity="turn",
    source="arXiv:2603.06859; EIT-EAST-Lab/C3@628185b c3/credit/c3/provider.py, variant reward_only",
    certainty="A",
    needs=["origin"],
    reads=reads_score,
)
def c3(table: CreditTable, settings: C3Settings) -> Advantages:
    """A_a = V(a) - mean of V over the other turns that were sampled after the same turns.

    V of a turn is the mean score of all episodes that hold it: the one that it was sampled in, and the forks that took
    it over. Turns were sampled in the same place if one is a fork's first own turn and the other that of its parent, or
    of another fork from there; first turns of a group are in one place, too. A turn that was sampled alone gets 0.
    `counterfactual_agent` samples the others.

    Differs from the authors' method: they branch all turns of a tree, with a fixed number of alternatives at each; here
    the forks decide which turns have some. Their variants with a critic are left out.
    """
    node = subtrees(table, needed(table.origin, "origin"))
    after, before = node[table.trajectory, table.turn + 1], node[table.trajectory, table.turn]
    turns, row, own = np.unique(after, return_index=True, return_inverse=True)
    value = np.bincount(own, settings.scores(table)[table.trajectory]) / np.maximum(np.bincount(own), 1)
    _, place = np.unique(before[row], return_inverse=True)
    count = np.bincount(place)[place]
    # One of the values is subtracted first, so that equal values differ by exactly 0.
    anchor = np.zeros(len(turns))
    anchor[place] = value
    shifted = value - anchor[place]
    gap = shifted - (np.bincount(place, shifted) / np.maximum(np.bincount(place), 1))[place]
    if settings.baseline == "loo":
        gap *= count / np.maximum(count - 1, 1)
    gap /= deviation(gap, place, np.ones(len(turns)), std=settings.std, eps=settings.eps)[place]
    advantage = gap[own]
    return Advantages(advantage, parts={"counterfactual": advantage}, metrics=_metrics(table, count[own], own))


def _metrics(table: CreditTable, count: Ints, own: Ints) -> dict[str, float]:
    trained = table.tokens > 0
    return {"turns_with_alternatives": float(np.mean(count[trained] > 1))} if trained.any() else {}
