"""The reward set of a recipe: what it calls, adds up, refuses."""

from __future__ import annotations

import asyncio
import math

import numpy as np
import pytest

from agentrl.rewards.components import RewardError, RewardSet, Score
from agentrl.rollouts.faults.failures import describe, verdict
from agentrl.types.episode import Episode
from agentrl.types.errors import RecipeError, SandboxError, TaskError
from agentrl.types.task import Task

TASK = Task.of("t1", "What?", answer="Paris", goal=3)


def episode(answer: str | None = "paris") -> Episode:
    return Episode(id="e1", group_id="t1", task=TASK, status="done", answer=answer)


async def score(rewards: dict, **kwargs):
    return await RewardSet.from_recipe(rewards).score(TASK, episode(), **kwargs)


async def test_weighted_sum_of_sync_and_async_components():
    async def asynchronous(episode, scale: float):
        await asyncio.sleep(0)
        return len(episode.answer) * scale

    scored = await score(
        {
            "exact_match": None,
            "goal": lambda task: task.data["goal"],
            "length": {"use": asynchronous, "weight": -0.5, "scale": 2},
            "metric": {"use": lambda sandbox: sandbox == "box", "weight": 0},
        },
        sandbox="box",
    )
    assert scored.components == {"exact_match": 1.0, "goal": 3.0, "length": 10.0, "metric": 1.0}
    assert scored.total == 1.0 + 3.0 - 5.0
    assert all(type(value) is float for value in scored.components.values())


async def test_none_is_not_zero():
    assert (await score({"a": lambda: None, "b": lambda: 0.5})).total == 0.5
    assert await score({"a": lambda: None}) == Score(components={"a": None}, success="reward")
    # What carries no weight cannot turn "never scored" into a reward of 0.0.
    assert (await score({"a": lambda: None, "metric": {"use": lambda: 1.0, "weight": 0}})).total is None
    assert await score({}) == Score(success="reward")


@pytest.mark.parametrize("value", [math.nan, math.inf, "1", [1.0], np.float32("nan")])
async def test_what_is_no_reward_is_refused_by_name(value):
    with pytest.raises(
        RewardError, match=r"episode e1: reward component 'bad' \(.*test_reward_components.py:\d+\) returned"
    ):
        await score({"bad": lambda: value})


@pytest.mark.parametrize("value", [True, 1, np.float32(1), np.int64(1), np.True_])
async def test_numbers_of_all_kinds(value):
    assert (await score({"good": lambda: value})).components == {"good": 1.0}


async def test_a_bug_in_user_code_is_a_user_error_with_the_name():
    def buggy(task):
        return task.data["no such key"]

    with pytest.raises(RewardError, match="'bought' raised KeyError") as caught:
        await score({"bought": buggy})
    assert verdict(caught.value).status == "user_error"
    record = describe(caught.value, "score")
    assert "bought" in record.message
    assert "in buggy" in record.traceback


async def test_lost_machinery_stays_an_infrastructure_error():
    def verifier():
        raise SandboxError("gone")

    with pytest.raises(SandboxError) as caught:
        await score({"tests": verifier})
    assert verdict(caught.value).retry
    assert "in reward component 'tests'" in describe(caught.value, "score").traceback


async def test_a_broken_data_set_is_told_with_its_task():
    with pytest.raises(TaskError, match="task t1: no gold answer: data has no 'gold', only"):
        await score({"f1": {"key": "gold"}})


def test_references_are_relative_to_the_recipe(tmp_path):
    (tmp_path / "task.py").write_text(
        "from __future__ import annotations\n"
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from nowhere import Sandbox\n"
        "async def bought(task, sandbox: Sandbox) -> float:\n    return 1.0\n"
    )
    rewards = RewardSet.from_recipe({"bought": "./task.py:bought"}, tmp_path)
    assert rewards.needs_sandbox
    assert asyncio.run(rewards.score(TASK, episode())).total == 1.0
    assert not RewardSet.from_recipe({"a": lambda sandbox=None: 1.0, "f1": {}}).needs_sandbox
    with pytest.raises(RecipeError, match="has no 'bougt'"):
        RewardSet.from_recipe({"bought": "./task.py:bougt"}, tmp_path)


@pytest.mark.parametrize(("rewards", "message"), [
    ({"exact_mach": None}, r"rewards.exact_mach: .*no reward 'exact_mach'\n.*did you mean 'exact_match'"),
    ({"f1": {"kye": "gold"}}, r"rewards.f1.kye: f1 has no setting 'kye'\n.*did you mean 'key'"),
    ({"numeric": {"tolerance": "wide"}}, r"rewards.numeric.tolerance: .*valid number.*found 'wide'"),
    ({"f1": {"weight": "much"}}, r"rewards.f1.weight: weight 'much'"),
    ({"f1": {"weight": math.nan}}, r"rewards.f1.weight: weight nan"),
    ({"mine": {"use": lambda task, scale: 1.0}}, r"rewards.mine.scale: <lambda> needs the setting 'scale'"),
    ({"mine": lambda *everything: 1.0}, r"rewards.mine: <lambda> cannot take \*everything"),
    ({"mine": 5}, r"rewards.mine: 5 is a int, not a function"),
    ({"f1": {"weight": 0}}, r"rewards: all reward components have weight 0"),
])  # fmt: skip
def test_recipe_errors_say_what_is_allowed(rewards, message):
    with pytest.raises(RecipeError, match=message):
        RewardSet.from_recipe(rewards)
