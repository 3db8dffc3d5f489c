"""CARL: in a tree of forks, a turn gets the change of the mean outcome; only turns with siblings are trained."""

from __future__ import annotations

from typing import Literal

import numpy as np

from agentrl.estimators.arrays import Floats, Ints
from agentrl.estimators.estimator import Advantages, estimator
from agentrl.estimators.score import ScoreSettings, reads_score
from agentrl.estimators.table import CreditTable, needed
from agentrl.estimators.turn.treepo import subtrees


class CarlSettings(ScoreSettings):
    """Settings of `carl`.

    Attributes:
        denominator: the divisor of a token mean of the loss: the tokens of the `selected` turns, as the authors leave
            out all others, or `all`. The trainer counts all, so `selected` multiplies the advantages by all / selected.
    """

    denominator: Literal["selected", "all"] = "selected"

    @property
    def needs_members(self) -> bool:
        """A turn without siblings gets 0."""
        return True


@estimator(
    granularity="turn",
    source="arXiv:2512.04949v3 (Eq. 10 to 13, Algorithm 2), from notes that quote them; no code published",
    certainty="B",
    needs=["origin"],
    reads=reads_score,
)
def carl(table: CreditTable, settings: CarlSettings) -> Advantages:
    """A_t = V(s_{t+1}) - V(s_t) if more than one turn was sampled in s_t, else 0.

    A state is a node of the tree of forks: the turns that were sampled before it. V of a leaf is the score of its
    trajectory, V of another node the plain mean over its children, whatever the number of their leaves. Which states
    have several turns decides whoever forks: `tree_agent` with `by: density`, where turns surprise. The trajectories of
    a group begin in one state.
    """
    node = subtrees(table, needed(table.origin, "origin"))
    value, children = _values(node, table.length, settings.scores(table))
    before, after = node[table.trajectory, table.turn], node[table.trajectory, table.turn + 1]
    chosen = children[before] > 1
    step = np.where(chosen, value[after] - value[before], 0.0)
    kept = int(table.tokens[chosen].sum())
    if settings.denominator == "selected" and kept:
        step *= table.n_tokens / kept
    metrics = {"critical_tokens": kept / table.n_tokens} if table.n_tokens else {}
    return Advantages(step, parts={"step": step}, metrics=metrics)


def _values(node: Ints, length: Ints, score: Floats) -> tuple[Floats, Ints]:
    """Value and number of children of each node, from the deepest to the first. An end is a child of its own."""
    size = int(node.max(initial=-1)) + 1
    total, children = np.zeros(size), np.zeros(size, np.int64)
    for depth in range(node.shape[1] - 1, -1, -1):
        ends = length == depth
        np.add.at(total, node[ends, depth], score[ends])
        np.add.at(children, node[ends, depth], 1)
        if depth:
            here = np.flatnonzero(length >= depth)
            found, first = np.unique(node[here, depth], return_index=True)
            above = node[here[first], depth - 1]
            np.add.at(total, above, total[found] / children[found])
            np.add.at(children, above, 1)
    return total / np.maximum(children, 1), children
