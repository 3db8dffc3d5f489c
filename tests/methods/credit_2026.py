"""Methods of 2025 and 2026 that give credit to turns."""

from __future__ import annotations

import numpy as np

from tests.estimators.tables import Member, Step, table_of
from tests.methods.credit import by_trajectory, part, rounded
from tests.methods.proofs import Method

# RTMC: b = 1/3. Q(a, x) = .99 / 2, V'(a) = (.99 + 2/3) / 5, Q(a, y) = 0; Q(b, u) = 1, Q(b, w) = 0, V'(b) = (1 + 2/3) / 4;
# V'(c) = (2/3) / 3. Over the deviation of the six.
TREE = table_of(
    [Member("g", score, [Step("a", 0, 1), Step(then, 0, 1)]) for score, then in ((1, "b"), (0, "b"), (0, "c"))]
).with_columns(action=["x", "u", "x", "w", "y", "u"])
ROOT = (0.99 + 2 / 3) / 5
BRANCHES = np.array([0.495 - ROOT, 7 / 12, 0.495 - ROOT, -5 / 12, -ROOT, -2 / 9])

METHODS = [
    Method("rtmc", lambda run: part(run, "rtmc", "step"), by_trajectory(TREE), rounded(BRANCHES / BRANCHES.std())),
]
