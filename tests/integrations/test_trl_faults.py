"""Environments of TRL that fail, and recipes that use them wrongly: what the model or the user is told."""

from __future__ import annotations

import re

import pytest

from agentrl.integrations.trl_environment import TrlEnvironment, trl_environment
from agentrl.tools.base import Environment
from agentrl.tools.methods import method
from agentrl.types.errors import RecipeError, ToolError
from agentrl.types.task import Task


class Door:
    """An environment whose methods raise, and which names the fields that it takes."""

    def reset(self, code: str, prompt: list[dict[str, str]]) -> str:
        """Closes the door."""
        self.given = (code, prompt[0]["content"])
        return "A door."

    async def push(self) -> str:
        """Push the door."""
        raise ValueError("It is locked.")

    async def kick(self) -> str:
        """Kick the door."""
        raise KeyError

    def pull(self) -> str:
        """Pull the door."""
        raise ValueError("There is no handle.")


async def test_reset_gets_the_fields_that_it_names_and_no_others() -> None:
    played = TrlEnvironment(Door)
    await played.open(Task.of("t", "Open it.", code="417", level=2), None)
    assert played.environment.given == ("417", "Open it.")
    assert await played.opening() == [{"role": "user", "content": "A door."}]


@pytest.mark.parametrize(
    ("name", "told"), [("push", "It is locked."), ("kick", "KeyError"), ("pull", "There is no handle.")]
)
async def test_a_method_that_raises_tells_the_model_why(name: str, told: str) -> None:
    played = TrlEnvironment(Door)
    await played.open(Task.of("t", "Open it.", code="417"), None)
    offered = {each.name: each for each in (method(played, tool) for tool in played.tools())}
    with pytest.raises(ToolError, match=f"^{re.escape(told)}$"):
        await offered[name].call({})


async def test_the_reward_needs_an_environment_of_trl() -> None:
    with pytest.raises(RecipeError, match="the episode has no environment of TRL") as refused:
        await trl_environment(Environment())
    assert refused.value.place == "rewards.trl_environment"
    assert "factory" in (refused.value.remedy or "")


async def test_an_environment_without_a_reward_is_named_with_both_ways_to_give_one() -> None:
    played = TrlEnvironment(Door)
    await played.open(Task.of("t", "Open it.", code="417"), None)
    with pytest.raises(RecipeError, match="Door has no get_reward and no reward") as refused:
        await trl_environment(played)
    assert "define get_reward(self), or set self.reward" in (refused.value.remedy or "")
