"""DRACO on the numbers of its appendix, and where no turn can be told apart."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.estimators.tables import Member, Step, run, table_of

TWO = [Step(None, 0, 2), Step(None, 0, 4)]
TABLE = table_of([Member("g", 1, TWO), Member("g", -1, TWO)])


@pytest.mark.parametrize(
    ("quality", "winner"),
    [([1, 1], [1.5, 0.75]), ([0.5, 1], [1.0, 1.0]), ([0, 1], [0.0, 1.5]), ([0, 0], [1.0, 1.0])],
)
def test_appendix_e(quality: list[float], winner: list[float]) -> None:
    """An advantage of 1 for turns of 2 and 4 tokens. Without quality all have the same; a loser mirrors the winner."""
    table = TABLE.with_columns(process=[*quality, *(1 - np.array(quality))])
    found = run("draco", table, std="none").turn
    assert found == pytest.approx([*winner, *(-each for each in winner)])
    assert found @ table.tokens == pytest.approx(0)


def test_untrained_turns_are_left_out() -> None:
    table = table_of([Member("g", 1, [Step(None, 0, 0), *TWO]), Member("g", -1, TWO)]).with_columns(process=[1] * 5)
    found = run("draco", table, std="none")
    assert found.turn[1:3] == pytest.approx([1.5, 0.75])
    # The loser of quality 1 has nothing to blame.
    assert found.turn[3:] == pytest.approx([-1, -1])
    assert math.isclose(found.metrics["moved_credit"], (0.5 + 0.25) / 4)
