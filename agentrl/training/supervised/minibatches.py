"""Minibatches of whole episodes or whole groups, in a seeded order."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from agentrl.types.sample import TrainingSample


def minibatches(
    samples: Sequence[TrainingSample], size: int, rng: np.random.Generator, whole_groups: bool = False
) -> list[list[int]]:
    """Returns the sample indices of each minibatch. Whole episodes are shuffled and split evenly (no small remainder).

    Args:
        size: maximum number of episodes; with `whole_groups`, groups are not split and may exceed it.
    """
    units: dict[str, list[int]] = {}
    for index, sample in enumerate(samples):
        units.setdefault(sample.group_id if whole_groups else sample.episode_id, []).append(index)
    parts = math.ceil(len({sample.episode_id for sample in samples}) / size)
    drawn = np.array_split(rng.permutation(len(units)), min(parts, len(units)))
    members = list(units.values())
    return [[index for unit in part for index in members[unit]] for part in drawn]


def endless(
    samples: Sequence[TrainingSample], size: int, rng: np.random.Generator, whole_groups: bool = False
) -> Iterator[list[int]]:
    """Minibatches of an endless sequence of shuffled passes."""
    while True:
        yield from minibatches(samples, size, rng, whole_groups)
