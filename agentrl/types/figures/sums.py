"""Sums and comparisons of rewards: weights such as .7, .2 and .1 do not add up to 1 in floating point."""

from __future__ import annotations

import math
from collections.abc import Iterable

TOLERANCE = 1e-9
"""Maximum difference of equal rewards."""


def total(values: Iterable[float]) -> float:
    """Returns the sum, rounded once."""
    return math.fsum(values)


def reaches(value: float, threshold: float) -> bool:
    """Returns True if a value is at least the threshold."""
    return value >= threshold - TOLERANCE


def exceeds(value: float, threshold: float) -> bool:
    """Returns True if a value is more than the threshold."""
    return value > threshold + TOLERANCE


def vary(values: Iterable[float]) -> bool:
    """Returns True if some of the values differ."""
    known = [*values]
    return bool(known) and max(known) - min(known) > TOLERANCE
