"""C3 on a tree that is written by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.estimators.tables import Member, Step, run, table_of

# Two episodes of a group: p (1), q (0). Forks of p at its second turn: r (0), s (0.5); of r at its third: t (1).
TREE = table_of([Member("g", score, [Step(None, 0, 1)] * 3) for score in (1, 0, 0, 0.5, 1)]).with_columns(
    origin=[0, 1, 2, 10, 11, 12, 0, 21, 22, 0, 31, 32, 0, 21, 42]
)


def test_by_hand() -> None:
    # Values. First turns: that of p (1 + 0 + 0.5 + 1) / 4 = 0.625, that of q 0. Second: p 1, r (0 + 1) / 2, s 0.5.
    # Third after r's second: r 0, t 1.
    first = [0.625, -0.625]
    second = [1 - 0.5, 0.5 - 0.75, 0.5 - 0.75]
    expected = [
        *(first[0], second[0], 0), *(first[1], 0, 0), *(first[0], second[1], -1), *(first[0], second[2], 0),
        *(first[0], second[1], 1),
    ]  # fmt: skip
    found = run("c3", TREE)
    assert found.turn == pytest.approx(expected)
    assert found.metrics == {"turns_with_alternatives": pytest.approx(11 / 15)}


def test_the_mean_of_all_and_the_deviation() -> None:
    # Second turns: 1, 1/2, 1/2 less their mean 2/3; their deviation is sqrt((4 + 1 + 1) / 36 / 2).
    plain, scaled = (run("c3", TREE, baseline="mean", std=std, eps=0.0).turn[[1, 7, 10]] for std in ("none", "sample"))
    assert plain == pytest.approx([1 / 3, -1 / 6, -1 / 6])
    assert scaled == pytest.approx(np.array([1 / 3, -1 / 6, -1 / 6]) / math.sqrt(1 / 12))


def test_equal_alternatives_give_exactly_nothing() -> None:
    table = table_of([Member("g", 0.1, [Step(None, 0, 1)])] * 3).with_columns(origin=[0, 1, 2])
    assert run("c3", table).turn.tolist() == [0.0] * 3
    assert run("c3", table, std="sample").turn.tolist() == [0.0] * 3
