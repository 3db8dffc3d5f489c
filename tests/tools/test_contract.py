"""What a tool or an environment does by default, and how a wrong one is refused."""

from __future__ import annotations

from typing import Any

import pytest

from agentrl.tools.base import Environment, Tool, own, tool
from agentrl.tools.methods import method
from agentrl.tools.responders import answer_of, info_of, openings, speakers
from agentrl.types.errors import RecipeError, ToolError
from agentrl.types.task import Task
from agentrl.types.values import ValueRefused


class Bare(Environment):
    """An environment that defines one tool."""

    @tool
    def look(self) -> str:
        """Look."""
        return "a wall"


class Opens(Bare):
    """An environment with an opening and an answer."""

    async def opening(self) -> str:
        """Says a word."""
        return "Begin."

    async def respond(self, reply: Any) -> str:
        """Refuses every reply."""
        raise ToolError("look first")


async def test_an_environment_without_methods_of_its_own_adds_nothing_to_an_episode() -> None:
    bare = Bare()
    assert [each.__name__ for each in bare.tools()] == ["look"]
    assert await bare.opening() == []
    assert await bare.respond(None) is None  # type: ignore[arg-type]
    assert await bare.save() is None
    await bare.restore({})
    assert (bare.knows_state, bare.state_key()) == (False, None)
    with pytest.raises(NotImplementedError):
        await bare.call_tool("look", {})


async def test_only_what_is_overridden_speaks() -> None:
    bare, opens = Bare(), Opens()
    assert await openings([bare, opens]) == [{"role": "user", "content": "Begin."}]
    assert speakers([bare, opens]) == [opens]
    answer = await answer_of(opens, None)  # type: ignore[arg-type]
    assert answer is not None
    assert (answer.text, answer.executed) == ("Error: look first", False)


@pytest.mark.parametrize("marked", [Bare, "look", 7])
def test_the_mark_of_a_tool_stands_before_a_function(marked: Any) -> None:
    with pytest.raises(TypeError, match="stands before a function or method, not before"):
        tool(marked)


def test_a_tool_that_needs_a_sandbox_says_so() -> None:
    with pytest.raises(TypeError, match="needs_sandbox = True asks for one"):
        own(None)


def test_what_is_no_tool_is_refused_with_the_class_that_gave_it() -> None:
    def plain() -> str:
        return ""

    with pytest.raises(RecipeError, match=r"Bare\.tools\(\) gives .*function") as refused:
        method(Bare(), plain)
    assert "give @tool methods" in (refused.value.remedy or "")


def test_arguments_of_any_number_cannot_be_shown_to_a_model() -> None:
    @tool
    def join(*words: str) -> str:
        return "".join(words)

    with pytest.raises(RecipeError, match=r"join: \*words cannot be shown to a model"):
        method(Tool(), join)


def test_the_info_of_an_environment_is_a_dict() -> None:
    bare = Bare()
    bare.info = ["rounds"]  # type: ignore[assignment]
    with pytest.raises(ValueRefused, match="info is a list") as refused:
        info_of([bare])
    assert refused.value.place == "Bare"
    bare.info = {"rounds": 3}
    assert info_of([Bare(), bare]) == {"rounds": 3}


async def test_a_tool_opens_and_closes_without_methods_of_its_own() -> None:
    held = Tool()
    await held.open(Task.of("t", "x"), None)
    await held.check_answers()
    await held.close()
