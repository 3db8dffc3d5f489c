"""Episodes as messages of chat completions, and the notes on what these cannot hold."""

from __future__ import annotations

from typing import Any

from agentrl.chat.formats.registry import parser_named
from agentrl.integrations.exchange.told import _written, told
from agentrl.types.episode import Episode, Turn
from agentrl.types.task import Task


def definition(name: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {}}
    return {"type": "function", "function": {"name": name, "description": "", "parameters": parameters}}


def an_episode(*turns: Turn, prompt: list[dict[str, Any]] | None = None) -> Episode:
    return Episode(
        id="e", group_id="g", task=Task.of("t", "x"), status="done", turns=[*turns], tools=[definition("look")],
        prompt=prompt or [{"role": "user", "content": "x"}],
    )  # fmt: skip


def test_tools_that_a_turn_adds_are_among_those_of_the_conversation() -> None:
    parser = parser_named("hermes")
    later = Turn(index=1, node=0, text="b", finish="stop", tools=[definition("look"), definition("open")])
    found = told(an_episode(Turn(index=0, node=0, text="a", finish="stop"), later), parser)
    assert [each["function"]["name"] for each in found.tools] == ["look", "open"], "each of them once"
    assert found.lost == {"changes of the tools": 1}
    assert [message["content"] for message in found.messages] == ["x", "a", "b"]


def test_images_become_a_word_and_are_told() -> None:
    shown = [{"type": "text", "text": "See: "}, {"type": "image", "blob": "1"}, {"type": "image", "blob": "2"}]
    episode = an_episode(prompt=[{"role": "user", "content": shown}, {"role": "user", "content": None}])
    found = told(episode, parser_named("hermes"))
    assert [message["content"] for message in found.messages] == ["See: [image][image]", ""]
    assert found.lost == {"images": 2}


def test_a_call_that_the_format_cannot_write_is_like_no_text() -> None:
    class Refuses:
        def format(self, text: str, calls: Any) -> str:
            raise ValueError("a value that it cannot write")

    call = {"id": "call_0_0", "type": "function", "function": {"name": "look", "arguments": {}}}
    assert _written({"role": "assistant", "content": "x", "tool_calls": [call]}, Refuses()) == ""  # type: ignore[arg-type]
