"""The token histories of trajectories, for estimators that use the prefix tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from agentrl.estimators.arrays import Floats, Ints
from agentrl.types.episode import Episode


@dataclass(frozen=True)
class History:
    """The tokens of trajectories.

    Attributes:
        tokens: one int64 array per trajectory: all of its tokens in order, including observations. A common prompt may
            be omitted.
        position: int64 [n_tokens], position of each sampled token in the array of its trajectory.
    """

    tokens: list[Ints]
    position: Ints


def history_of(episodes: Sequence[Episode]) -> History:
    """The tokens of episodes: their nodes in order of creation (a context edit starts a new prompt, which counts)."""
    tokens, positions = [], []
    for episode in episodes:
        starts = np.concatenate([[0], np.cumsum([len(node.token_ids) for node in episode.nodes])]).astype(np.int64)
        tokens.append(np.array([token for node in episode.nodes for token in node.token_ids], np.int64))
        positions += [starts[turn.node] + np.arange(episode.trained(turn)) for turn in episode.own_turns]
    return History(tokens, np.concatenate(positions) if positions else np.zeros(0, np.int64))


def prefix_values(history: History, group: Ints, score: Floats, sampled: Ints) -> tuple[Floats, Floats]:
    """Mean score of the group's trajectories that start with a sampled token's prefix.

    Args:
        group, score: [n_trajectories].
        sampled: [n_trajectories], sampled tokens of each trajectory.

    Returns:
        V of the prefix that ends before the token, and V of the one that ends with it; [n_tokens] each.

    Sorting by tokens makes trajectories with a common prefix adjacent, and V changes only at depths where two
    neighbours diverge: one pass over the trajectories for each such depth.
    """
    owner = np.repeat(np.arange(len(score)), sampled)
    before, after = score[owner], score[owner]
    # Sorting by big-endian bytes makes equal prefixes adjacent. Placeholders of images (negative) come last.
    keys = [tokens.astype(">i8").tobytes() for tokens in history.tokens]
    order = np.array(sorted(range(len(score)), key=lambda i: (group[i], keys[i])), np.int64)
    shared = np.array([-1] + [_shared(history.tokens[a], history.tokens[b]) for a, b in pairwise(order)], np.int64)
    shared[1:][np.diff(group[order]) != 0] = -1
    # A prefix of length n is shared by a run of neighbours that have at least n tokens in common; all prefixes between
    # two depths of parting are shared by the same run.
    low = 0
    for high in np.unique(shared[shared >= 0]).tolist():
        run = np.cumsum(shared < high) - 1
        mean = _means(run, order, score)
        for values, length in ((before, history.position), (after, history.position + 1)):
            inside = (length >= low) & (length <= high)
            values[inside] = mean[owner[inside]]
        low = high + 1
    return before, after


def _means(run: Ints, order: Ints, score: Floats) -> Floats:
    """Mean score of each trajectory's run [n_trajectories]."""
    sums = np.bincount(run, score[order]) / np.bincount(run)
    mean = np.empty(len(score))
    mean[order] = sums[run]
    return mean


def _shared(a: Ints, b: Ints) -> int:
    """Length of the common prefix."""
    size = min(len(a), len(b))
    differs = np.flatnonzero(a[:size] != b[:size])
    return int(differs[0]) if len(differs) else size
