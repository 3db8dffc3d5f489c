"""Positions of tokens in models whose images have rows and columns (M-RoPE, arXiv:2409.12191, section 2.1).

A text token has one position, three times. The placeholders of an image share the first number and count rows and
columns in the others. The text behind an image goes on at the largest of its numbers + 1.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from agentrl.models.vision.album import Ints, Places

Grids = Mapping[int, tuple[int, int]]
"""Rows and columns of placeholders, by number of the image."""


def grid_positions(count: int, places: Places, grids: Grids, base: int = 0) -> tuple[Ints, Ints]:
    """Positions of consecutive tokens.

    Args:
        count: number of tokens.
        places: the placeholders among them. If the first token is in the middle of an image, `base` is that image's.
        base: position of the first token.

    Returns:
        The positions, int64 [3, count], and the position of the token that would follow each, int64 [count].
    """
    positions = np.empty((3, count), np.int64)
    following = np.empty(count, np.int64)
    begins = np.flatnonzero((places.place == 0) | (np.arange(len(places.at)) == 0))
    ends = [*begins[1:].tolist(), len(places.at)][: len(begins)]
    at = 0
    for begin, end in zip(begins.tolist(), ends, strict=True):
        first = int(places.at[begin])
        positions[:, at:first] = base + np.arange(first - at)
        following[at:first] = base + np.arange(first - at) + 1
        base += first - at
        place, at = places.place[begin:end], first + end - begin
        rows, columns = grids[int(places.number[begin])]
        positions[0, first:at] = base
        positions[1, first:at] = base + place // columns
        positions[2, first:at] = base + place % columns
        base += max(rows, columns)
        following[first:at] = base
    positions[:, at:] = base + np.arange(count - at)
    following[at:] = base + np.arange(count - at) + 1
    return positions, following
