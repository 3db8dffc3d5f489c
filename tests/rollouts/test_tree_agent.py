"""The agent that forks its episode at the turns that surprise the policy most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentrl.engines.scripted import Say, ScriptedEngine
from agentrl.store import RunDir, check
from agentrl.types.engine import Completion, Sampling
from agentrl.types.episode import Episode, in_order
from agentrl.types.errors import RecipeError
from agentrl.types.trajectory import Trajectory
from tests.rollouts.world import collect, make_context, make_parts, specs

SURE = [0.1, 0.7, 0.3, 0.2]
"""How surprising each turn is."""


class Unsure(ScriptedEngine):
    """Has log-probabilities."""

    async def generate(self, token_ids: Sequence[int], sampling: Sampling, session: str) -> Completion:
        turn = len(self._live[session].seen) // 2
        found = await super().generate(token_ids, sampling, session)
        return msgspec.structs.replace(
            found, logprobs=[-SURE[turn % 4] - 0.01 * ("." in session)] * len(found.token_ids)
        )


def four(task: Any, rng: Any) -> Any:
    for turn in range(3):
        yield Say(calls=[("echo", {"text": f"{turn} {rng.randint(0, 9)}"})])
    yield Say("Done.")


async def grown(tmp_path: Path, split: str = "train", max_turns: int = 8, **settings: Any) -> list[Episode]:
    parts = make_parts(tmp_path, agent={"use": "tree_agent", "max_turns": max_turns, **settings})
    context = make_context(parts, four, Unsure)
    with RunDir.create(tmp_path / "run") as run:
        await collect(context, [replace(each, split=split) for each in specs(1)], run=run)
        episodes = in_order(run.episodes())
    assert (report := check(tmp_path / "run")).ok, report.as_text()
    return episodes


def origins(episodes: Sequence[Episode]) -> list[tuple[str, int]]:
    return [(each.parent.episode.rpartition("#")[2], each.parent.turn) for each in episodes if each.parent]


async def test_the_most_surprising_turns_are_sampled_again(tmp_path: Path) -> None:
    """Those of forks, too, which are a little less sure; but none has the prompt of one that was forked already."""
    trunk, *forks = await grown(tmp_path, forks=4)
    assert origins(forks) == [("0", 1), ("0.1", 2), ("0", 2), ("0.1", 3)]
    assert {each.status for each in (trunk, *forks)} == {"done"}


async def test_a_prompt_is_forked_once(tmp_path: Path) -> None:
    """A tree of four turns has seven more that can be forked beside the first, and those of these forks."""
    _, *forks = await grown(tmp_path, forks=30, by="random")
    prompts = [tuple(Trajectory(each.nodes).before(each.turns[each.taken].node)) for each in forks]
    assert len(set(origins(forks))) == len(forks)
    assert len(set(prompts)) == len(prompts)


async def test_by_density_a_prompt_is_forked_until_others_surprise_more(tmp_path: Path) -> None:
    """Turn 1: .7; with a fork's .71 it is .3525 for each of two, above the .31 of later turns; then .24 for each."""
    _, *forks = await grown(tmp_path, forks=4, by="density")
    assert origins(forks) == [("0", 1), ("0", 1), ("0.1", 2), ("0.2", 2)]


async def test_a_tree_has_its_budget_of_sampled_tokens(tmp_path: Path) -> None:
    trunk, *forks = await grown(tmp_path, forks=30, tokens=400)
    sampled = [each.sampled_tokens for each in (trunk, *forks)]
    assert sum(sampled[:-1]) < 400 <= sum(sampled)


async def test_an_episode_at_its_limit_is_forked_before_it_ends(tmp_path: Path) -> None:
    trunk, *forks = await grown(tmp_path, forks=2, max_turns=2)
    assert (trunk.status, trunk.stop) == ("truncated", "turns")
    assert [each.stop for each in forks] == ["turns", "turns"]


async def test_an_evaluation_has_no_forks(tmp_path: Path) -> None:
    assert len(await grown(tmp_path, split="eval", forks=4)) == 1


def test_settings_are_checked(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="forks"):
        make_parts(tmp_path, agent={"use": "tree_agent", "forks": 0})
    with pytest.raises(RecipeError, match="by"):
        make_parts(tmp_path, agent={"use": "tree_agent", "by": "entropy"})
