"""Rubrics that a judge makes for a group: a real HTTP server judges."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentrl.rewards import RewardSet
from agentrl.rewards.groups import score_group
from agentrl.rewards.score import Score
from agentrl.types.errors import RecipeError
from agentrl.types.task import Task
from tests.engines.http_server import serving, status
from tests.rewards.make import make_episode, turn

TASK = Task.of("t", "Book a table.")
VERDICTS = {
    "first": [["pass", [0]], ["fail", [1, 7]], ["pass", [0, 1]], ["na", [2]]],
    "second": [["pass", [0]], ["pass", [1]], ["fail", [0]], ["na", []]],
    "third": "none",
}


def judge(body: Any) -> str:
    text = body["messages"][0]["content"]
    if "You write criteria" in text:
        return "Hm." if "third" in text else json.dumps({"criteria": [f"It is {k}." for k in ("a", "b", "c", "d")]})
    if "Merge" in text:
        assert text.count("It is a.") == 1  # proposed by all
        return 'I keep all. {"criteria": ["It is a.", "It is b.", "It is c.", "It is d."]}'
    named = (found for name, found in VERDICTS.items() if f"I am {name}" in text)
    return json.dumps({"verdicts": next(named, "none")})


async def scored(tmp_path: Path, answer: Callable[[Any], Any] = judge, **settings: Any) -> list[Score]:
    async def reply(path: str, body: Any) -> Any:
        found = answer(body)
        if not isinstance(found, str):
            return found
        return {"choices": [{"message": {"role": "assistant", "content": found}, "finish_reason": "stop"}]}

    async with serving(reply) as url:
        asked = {"url": f"{url}/v1", "model": "m", "cache": str(tmp_path), "retries": 0}
        rewards = RewardSet.from_recipe(
            {
                "rubric": {"use": "dynamic_rubric", "judge": asked},
                "process": {"use": "cited_quality", "weight": 0.0, **settings},
            }
        )
        group = [make_episode(TASK, turn(text=f"I am {name}"), turn(), turn(), answer="") for name in VERDICTS]
        return await score_group(rewards, [msgspec.structs.replace(each, id=f"g#{k}") for k, each in enumerate(group)])


async def test_a_rubric_for_the_group(tmp_path: Path) -> None:
    """All pass a, and it is dropped: of b and c one passes and one fails. d does not apply."""
    first, second, third = await scored(tmp_path)
    assert [first.total, second.total, third.total] == [0.0, 0.0, None]
    told = json.loads(first.notes["rubric"])
    assert told == {"criteria": ["It is b.", "It is c."], "verdicts": [[1, "fail", [1]], [2, "pass", [0, 1]]]}
    assert third.notes["rubric"].startswith("malformed reply")
    # Turn 0 of the first is cited by c, turn 1 by both, turn 2 by none: the mean of 1 and 1/2.
    assert [each["process"] for each in first.turns] == [1.0, 0.5, 0.75]
    assert [each["process"] for each in second.turns] == [0.0, 1.0, 0.5]
    assert third.components["process"] is None


async def test_without_criteria_nothing_is_scored(tmp_path: Path) -> None:
    assert [each.total for each in await scored(tmp_path, lambda body: "No idea.")] == [None] * 3


async def test_the_rubric_stands_before_the_quality(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="no component 'rubrics'"):
        await scored(tmp_path, of="rubrics")


async def test_a_member_that_the_judge_refuses_to_read_costs_the_others_nothing(tmp_path: Path) -> None:
    """It gets what is worst, and its criteria are left out."""

    def answer(body: Any) -> Any:
        return status(400) if "I am third" in body["messages"][0]["content"] else judge(body)

    first, second, third = await scored(tmp_path, answer)
    assert [first.total, second.total, third.total] == [0.0, 0.0, -1.0]
    assert third.notes["rubric"] == "the judge refuses what the agent wrote"
    assert third.components["process"] is None


async def test_verdicts_that_are_nested_too_deep_are_none(tmp_path: Path) -> None:
    deep = '{"verdicts":' * 5000

    def answer(body: Any) -> Any:
        found = judge(body)
        return deep if "I am second" in body["messages"][0]["content"] and "verdicts" in found else found

    first, second, _ = await scored(tmp_path, answer)
    assert first.total is not None
    assert (second.total, second.notes["rubric"]) == (None, "malformed reply: no verdicts")
