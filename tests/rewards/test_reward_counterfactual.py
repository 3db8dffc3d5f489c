"""The reward of a role: what the answer owes to it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from agentrl.rewards import RewardSet
from agentrl.rewards.groups import score_group
from agentrl.types.episode import Episode
from agentrl.types.task import Task
from tests.rewards.make import make_episode, turn

TASK = Task.of("t", "2 + 2?", answer="4")


def episode(answer: str | None, **without: Any) -> Episode:
    """A thinker speaks twice, then a solver answers; what is answered without them."""
    turns = (turn(agent="thinker", context="aside"), turn(agent="thinker", context="aside"), turn(agent="solver"))
    return make_episode(TASK, *turns, answer=answer, info={"without": without} if without else {})


async def by_turn(group: list[Episode], **settings: Any) -> list[list[float | None]]:
    rewards = RewardSet.from_recipe({"it": {"use": "counterfactual", **settings}, "exact_match": {}})
    members = []
    for k, each in enumerate(group):
        score = await rewards.score(TASK, each)
        members.append(msgspec.structs.replace(score.onto(each), id=f"g#{k}"))
    return [[given.get("it") for given in score.turns] for score in await score_group(rewards, members)]


GROUP = [episode("4", thinker="5"), episode("4", thinker="4"), episode("5", thinker="4"), episode(None, thinker=None)]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [1, 0, -1, 0]),
        ({"form": "event"}, [1, 0, -1, 0]),
        # Without the thinker two of four are right: neither is what would be the case.
        ({"baseline": "group"}, [0.5, 0.5, -0.5, -0.5]),
        ({"baseline": "group", "form": "event"}, [0, 0, 0, 0]),
    ],
)
async def test_the_last_turn_of_a_role_gets_the_difference(settings: dict, expected: list[float]) -> None:
    assert await by_turn(GROUP, **settings) == [[None, value, None] for value in expected]


async def test_an_event_is_against_the_group() -> None:
    """Without the thinker one of three is right: that an answer is right is against the odds, for that one, too."""
    found = await by_turn([episode("4", thinker="4"), *[episode("4", thinker="5")] * 2], form="event", baseline="group")
    assert [turns[1] for turns in found] == [1, 1, 1]


async def test_contexts_and_roles_are_named_and_others_are_not_scored() -> None:
    found = await by_turn([episode("4", aside="5", solver="1", nobody="4"), episode("4")])
    assert found == [[None, 1, 1], [None] * 3]
