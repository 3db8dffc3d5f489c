"""Rank-GRPO, against values by hand."""

from __future__ import annotations

from typing import Any

import pytest

from agentrl.estimators.table import CreditTable
from tests.estimators.tables import run

TABLE = CreditTable.from_columns(
    episode=["a", "b"], group=["g", "g"], score=[0, 0], length=[1, 1], reward=[3, 4], tokens=[6, 3]
).with_columns(span_reward=[0, 2, 0, 1, 0, 0, 0, 4, 0], span_end=[0, 1, 0, 1, 1, 0, 0, 1, 0])
"""Ranks of 2, 2 and 1 tokens with rewards 2, 1 and 0, and the end of the reply; one rank with reward 4, and the end."""


def tokens(table: CreditTable, **settings: Any) -> list[float]:
    """The advantages of tokens, without division."""
    found = run("rank_grpo", table, **{"std": "none", **settings}).token
    assert found is not None
    return found.tolist()


def test_a_rank_gets_its_return_against_the_same_rank():
    # Returns 3, 1, 0 and 4; the list that ended has 0 at the second and third rank.
    assert tokens(TABLE) == [-0.5, -0.5, 0.5, 0.5, 0.0, 0.0, 0.5, 0.5, 0.0]


def test_without_later_ranks_a_rank_gets_its_own_reward():
    assert tokens(TABLE, gamma=0.0) == [-1.0, -1.0, 0.5, 0.5, 0.0, 0.0, 1.0, 1.0, 0.0]


def test_a_later_rank_counts_by_its_discount():
    # 2 + 1/2 against 4, and 1 against nothing.
    assert tokens(TABLE, gamma=0.5) == [-0.75, -0.75, 0.5, 0.5, 0.0, 0.0, 0.75, 0.75, 0.0]


def test_the_deviation_is_that_of_the_rank():
    found = tokens(TABLE, std="sample", eps=0.0)
    assert found == pytest.approx([-(0.5**0.5)] * 2 + [0.5**0.5] * 2 + [0.0] * 2 + [0.5**0.5] * 2 + [0.0])


def test_the_outcome_belongs_to_the_last_rank_and_returns_pass_turns():
    table = CreditTable.from_columns(
        episode=["a", "b"], group=["g", "g"], score=[8, 0], length=[2, 1], reward=[1, 2, 0], tokens=[1, 3, 1]
    ).with_columns(span_reward=[0, 2, 0, 0, 0], span_end=[0, 1, 1, 0, 0])
    # Of `a`, a turn of one token without spans (1 + 2 + 8), two ranks (2 + 8 and 8) and an end; `b` has one turn of 0.
    assert tokens(table) == [5.5, 5.0, 4.0, 0.0, -5.5]


def test_a_group_of_one_has_nothing_to_compare_with():
    table = CreditTable.from_columns(episode=["a"], group=["g"], score=[2], length=[1], reward=[1], tokens=[2])
    assert tokens(table) == [0.0, 0.0]
    assert tokens(table, singleton="raw") == [3.0, 3.0]
