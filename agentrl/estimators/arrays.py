"""Array types of credit, and sums and indices that estimators share."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def discounted(values: Floats, left: Ints, gamma: float) -> Floats:
    """G_k = v_k + gamma * G_{k+1}, inside each sequence.

    Args:
        values: [n], the sequences one after the other.
        left: [n], how many entries of the same sequence follow; 0 at its end.

    Sums of 2, 4, 8, ... terms are doubled until they reach the longest sequence: log2(length) vector operations and
    no division by a power of gamma, which would overflow on long sequences.
    """
    sums = values.astype(np.float64)
    reach, factor = 1, gamma
    longest = int(left.max(initial=0))
    while reach <= longest:
        ahead = np.flatnonzero(left >= reach)
        sums[ahead] += factor * sums[ahead + reach]
        reach, factor = reach * 2, factor * factor
    return sums


def combine(a: Ints, b: Ints) -> Ints:
    """One index for every distinct pair of entries, from 0 on."""
    shifted = b - b.min(initial=0)
    pairs = (a - a.min(initial=0)) * (shifted.max(initial=0) + 1) + shifted
    return np.unique(pairs, return_inverse=True)[1]


Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
