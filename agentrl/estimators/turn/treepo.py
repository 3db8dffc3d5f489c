"""TreePO: compares a trajectory with the mean of each sub-tree with the same beginning."""

from __future__ import annotations

from typing import Literal

import numpy as np

from agentrl.estimators.arrays import Ints
from agentrl.estimators.estimator import Advantages, estimator
from agentrl.estimators.normalise import whiten
from agentrl.estimators.outcome.reinforce import Whitening
from agentrl.estimators.score import ScoredBaseline, broadcast, reads_score, settle_singletons
from agentrl.estimators.table import CreditTable, Weighting, needed


class TreepoSettings(Whitening, ScoredBaseline):
    """Settings of `treepo`. `weighting` applies to the whitening; sub-trees count trajectories.

    Attributes:
        aggregate: over the sub-trees of a trajectory: their mean (`average`, as shipped), or weighted by their number
            of trajectories (`group_size`).
        drop_flat: leave out sub-trees whose trajectories all have the same score.
        whiten: whiten over the batch at the end, as the authors do.
    """

    weighting: Weighting = "token"
    aggregate: Literal["average", "group_size"] = "average"
    drop_flat: bool = False
    whiten: bool = True


@estimator(
    granularity="trajectory",
    source="arXiv:2508.17445; multimodal-art-projection/TreePO@f055523 core_algos "
    "compute_tree_reinforce_plus_plus_baseline_outcome_advantage",
    certainty="A",
    needs=["action"],
    reads=reads_score,
)
def treepo(table: CreditTable, settings: TreepoSettings) -> Advantages:
    """A_i = aggregate over depths d of (S_i - mean score of the trajectories with the same first d actions).

    Depth 0 is the whole group; d is less than the number of the trajectory's actions, so that trajectories with equal
    actions are not compared only with each other. Deeper sub-trees of one trajectory are left out. Then whitening
    over the batch.

    Differs from the authors' method: actions replace their segments of 512 tokens. Trajectories share a prefix if an
    agent forks them (`agent: tree_agent`), or if they happen to act alike; else this is `reinforce_pp_baseline`.
    """
    score = settings.scores(table)
    node = subtrees(table, needed(table.action, "action"))
    inside = node >= 0
    node[~inside] = 0
    leaves = np.maximum(np.bincount(node[inside]), 1)
    spread = np.broadcast_to(score[:, None], node.shape)
    anchor = np.zeros(len(leaves))  # one of the sub-tree's own scores: equal scores then differ by exactly 0
    anchor[node[inside]] = spread[inside]
    mean = np.bincount(node[inside], (spread - anchor[node])[inside]) / leaves
    gap = spread - anchor[node] - mean[node]

    depths = np.arange(node.shape[1])
    counted = inside & (leaves[node] > 1) & ((depths < table.length[:, None]) | (depths == 0))
    if settings.drop_flat:
        varied = np.bincount(node[inside], np.abs(gap[inside])) > 0
        counted &= varied[node]
    weight = counted * (leaves[node] if settings.aggregate == "group_size" else 1.0)
    total = weight.sum(axis=1)
    advantage = (weight * gap).sum(axis=1) / np.where(total > 0, total, 1)
    advantage = settle_singletons(table, advantage, score, settings.singleton)
    if settings.whiten:
        weights = table.trajectory_weights(settings.weighting)
        advantage = whiten(advantage, weights, std=settings.std, eps=settings.eps)
    return broadcast(table, advantage)


def subtrees(table: CreditTable, action: Ints) -> Ints:
    """Node of the action tree that each trajectory is in after d turns, -1 past its end [n_trajectories, longest + 1].

    Sorted by their actions, trajectories with a common beginning lie side by side, and a node ends wherever two
    neighbours differ in its beginning.
    """
    longest = int(table.length.max(initial=0))
    path = np.full((table.n_trajectories, longest + 1), -1)
    path[:, 0] = table.group
    path[table.trajectory, table.turn + 1] = action
    order = np.lexsort(path.T[::-1])
    ordered = path[order]
    parted = np.ones(path.shape, np.bool_)
    parted[1:] = np.logical_or.accumulate(ordered[1:] != ordered[:-1], axis=1)
    serial = np.cumsum(parted, axis=0) - 1
    serial += np.concatenate([[0], np.cumsum(serial[-1, :-1] + 1)])  # nodes of different depths are different
    node = np.empty(path.shape, np.int64)
    node[order] = serial
    node[np.arange(longest + 1) > table.length[:, None]] = -1
    return node
