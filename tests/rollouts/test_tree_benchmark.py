"""`benchmarks.tree_rollouts`: what it counts, and that it looks at every fork."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from benchmarks.tree_rollouts import cut, figures, must_equal_their_parents
from tests.rollouts.test_forks import tree


async def test_a_fork_in_another_state_is_found(tmp_path: Path) -> None:
    trunk, first, second = await tree(tmp_path)
    must_equal_their_parents([trunk, first, second])
    turns = [*second.turns]
    turns[second.taken] = msgspec.structs.replace(turns[second.taken], saved=[{"at": 99}])
    with pytest.raises(AssertionError, match=rf'{second.id}: .*"at":99'):
        must_equal_their_parents([trunk, first, msgspec.structs.replace(second, turns=turns)])


async def test_a_group_of_trees_is_cut_at_the_tokens_of_the_other(tmp_path: Path) -> None:
    group = await tree(tmp_path)
    trunk, first, second = (each.sampled_tokens for each in group)
    assert cut(group, trunk - 1) == group[:1], "the root stays"
    assert cut(group, trunk + first) == group[:2]
    assert cut(group, trunk + first + second) == group
    scored = [[msgspec.structs.replace(each, reward=reward) for each in group] for reward in (0.0, 1.0)]
    assert figures(scored)["signal"] == 0.0
    assert figures([[*scored[0], *scored[1]]])["signal"] == 1.0
