"""The agent that samples alternatives of its turns, and the credit that compares them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentrl.estimators.lineage import origins
from agentrl.estimators.table import CreditTable
from agentrl.store import RunDir, check
from agentrl.types.episode import Episode, in_order
from tests.estimators.tables import run
from tests.rollouts.test_tree_agent import Unsure, four
from tests.rollouts.world import collect, make_context, make_parts, specs


async def played(tmp_path: Path, split: str = "train", max_turns: int = 8, **settings: Any) -> list[Episode]:
    parts = make_parts(tmp_path, agent={"use": "counterfactual_agent", "max_turns": max_turns, **settings})
    context = make_context(parts, four, Unsure)
    with RunDir.create(tmp_path / "run") as stored:
        await collect(context, [replace(each, split=split) for each in specs(1)], run=stored)
        episodes = in_order(stored.episodes())
    assert (report := check(tmp_path / "run")).ok, report.as_text()
    return episodes


def places(forks: list[Episode]) -> list[int]:
    return [fork.parent.turn for fork in forks if fork.parent is not None]


async def test_all_turns_but_the_first_have_alternatives(tmp_path: Path) -> None:
    """The script has four turns: of the budget of seven forks six are used."""
    trunk, *forks = await played(tmp_path, forks=7, alternatives=2)
    assert {fork.parent.episode for fork in forks if fork.parent} == {trunk.id}
    assert places(forks) == [1, 1, 2, 2, 3, 3]


async def test_a_smaller_budget_chooses_turns(tmp_path: Path) -> None:
    _, *forks = await played(tmp_path, forks=5, alternatives=2)
    assert len(set(places(forks))) == 2
    assert len(forks) == 4


async def test_an_episode_at_its_limit_is_forked_before_it_ends(tmp_path: Path) -> None:
    trunk, *forks = await played(tmp_path, forks=2, max_turns=2)
    assert (trunk.stop, [fork.stop for fork in forks]) == ("turns", ["turns"])


async def test_an_evaluation_has_no_forks(tmp_path: Path) -> None:
    assert len(await played(tmp_path, split="eval")) == 1


async def test_turns_that_forks_took_over_are_known_by_their_origin(tmp_path: Path) -> None:
    trunk, *forks = await played(tmp_path, forks=3)
    assert places(forks) == [1, 2, 3]
    found = iter(origins([trunk, *forks]))
    own, *others = ([next(found) for _ in each.own_turns] for each in (trunk, *forks))
    assert len(set(own)) == 4
    for turn, fork in zip(places(forks), others, strict=True):
        assert fork[:turn] == own[:turn]
        assert not set(fork[turn:]) & set(own)
    # A success and a failed fork of its second turn: 1 less 0 and 0 less 1; all else was sampled alone.
    table = CreditTable.from_columns(
        episode=["a", "b"], group=["g", "g"], score=[1.0, 0.0], length=[3, 3],
        reward=[0.0] * 6, tokens=[1, 1, 1, 0, 1, 1], origin=[0, 1, 2, 0, 3, 4],
    )  # fmt: skip
    assert run("c3", table).turn == pytest.approx([0, 1, 0, 0, -1, 0])
