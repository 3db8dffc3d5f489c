"""Curves as text, for terminals."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

_BLOCKS = "▁▂▃▄▅▆▇█"
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
"""Bits of a character of braille, by column and row of its dots."""

_LABEL = 9  # columns of the numbers at a chart


def sparkline(values: list[float], width: int = 60) -> str:
    """A curve of block characters; longer ones are averaged down to `width`."""
    if not values:
        return ""
    if len(values) > width:
        edges = [round(i * len(values) / width) for i in range(width + 1)]
        values = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, span = min(values), max(values) - min(values)
    return "".join(_BLOCKS[round((value - low) / span * 7) if span else 3] for value in values)


def chart(points: Sequence[tuple[float, float]], width: int = 60, height: int = 6) -> list[str]:
    """A curve of dots with the range of its values, a string a line.

    Args:
        points: (x, y) in order of x, at least one; finite.
        width, height: in characters, with the numbers on the left and below.
    """
    columns, rows = 2 * max(width - _LABEL - 1, 1), 4 * max(height - 1, 1)
    heights = _heights(points, columns, rows)
    cells = [[0] * (columns // 2) for _ in range(rows // 4)]
    for x, (before, y) in enumerate(pairwise([heights[0], *heights])):
        for level in range(min(y, before + (y > before)), max(y, before - (y < before)) + 1):
            row = rows - 1 - level
            cells[row // 4][x // 2] |= _DOTS[x % 2][row % 4]
    values = [value for _, value in points]
    labels = [short(max(values)), *[""] * (len(cells) - 2), short(min(values))][: len(cells)]
    lines = [
        f"{label:>{_LABEL}} {''.join(chr(0x2800 + bits) for bits in line)}"
        for label, line in zip(labels, cells, strict=True)
    ]
    first, last = f"{points[0][0]:g}", f"{points[-1][0]:g}"
    return [*lines, f"{'':{_LABEL}} {first}{last:>{max(columns // 2 - len(first), len(last) + 1)}}"]


def short(value: Any) -> str:
    """A number in few digits; "" for None."""
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) >= 1000 or 0 < abs(value) < 0.001 else f"{value:.3f}"
    return "" if value is None else str(value)


def _heights(points: Sequence[tuple[float, float]], columns: int, rows: int) -> list[int]:
    """The row of the curve in each column, counted from below: means of the column's points, straight between them."""
    first, span = points[0][0], points[-1][0] - points[0][0]
    by_column: dict[int, list[float]] = {}
    for x, y in points:
        by_column.setdefault(round((x - first) / span * (columns - 1)) if span else 0, []).append(y)
    values = np.array([value for _, value in points])
    low, most = values.min(), values.max() - values.min()
    means = [sum(some) / len(some) for some in by_column.values()]
    drawn = np.interp(np.arange(columns if span else 1), [*by_column], means)
    return [round((value - low) / most * (rows - 1)) if most else rows // 2 for value in drawn.tolist()]
