"""Calls and results of programs: whose result is whose, and calls that were not written well."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentrl.chat.formats.native_calls import NO_RESULT
from agentrl.chat.tokenizer import ByteTokenizer

from .test_proxy import ADD, Parrot, connected, user

WHOLE = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
BROKEN = '<tool_call>\n{"name": "add", "arguments": {"a": '


def call(id: str, arguments: Any = '{"a": 1}') -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": "add", "arguments": arguments}}


def asks(*calls: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": list(calls)}


def result(id: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "content": f"value of {id}"}


async def shown(*messages: dict[str, Any]) -> str:
    """The prompt of a first request that holds `messages`."""
    parrot = Parrot("ok")
    async for client in connected(parrot, ByteTokenizer()):
        assert (await client.say([user("Go."), *messages], tools=[ADD]))["content"] == "ok"
    prompt: str = parrot.prompts[0]
    return prompt


async def test_results_are_shown_in_the_order_of_the_calls_that_they_name() -> None:
    prompt = await shown(asks(call("A"), call("B")), result("B"), result("A"), user("Go on."))
    assert 0 < prompt.index("value of A") < prompt.index("value of B") < prompt.index("Go on.")


async def test_a_call_without_a_result_beside_one_with_has_its_place() -> None:
    prompt = await shown(asks(call("A"), call("B"), call("C")), result("B"))
    places = [prompt.index(NO_RESULT), prompt.index("value of B"), prompt.rindex(NO_RESULT)]
    assert places == sorted(places)
    assert len(set(places)) == 3
    assert NO_RESULT not in await shown(asks(call("A"), call("B")), user("Never mind."))


async def test_results_of_a_sampled_reply_go_by_id() -> None:
    parrot = Parrot(WHOLE + "\n" + WHOLE, "ok")
    async for client in connected(parrot, ByteTokenizer()):
        said = await client.say([user("Add.")], tools=[ADD])
        one, two = (each["id"] for each in said["tool_calls"])
        await client.say([user("Add."), said, result(two), result(one)], tools=[ADD])
        episode = await client.end()
    assert parrot.prompts[1].index(f"value of {one}") < parrot.prompts[1].index(f"value of {two}")
    assert episode.branches == []
    assert [(each.id, each.result) for each in episode.turns[0].calls] == [
        (one, f"value of {one}"),
        (two, f"value of {two}"),
    ]


@pytest.mark.parametrize("broken", [BROKEN, '<tool_call>\n{"name": "sub", "arguments": {}}\n</tool_call>'])
async def test_a_whole_call_beside_one_that_cannot_be_read_is_handed_out(broken: str) -> None:
    async for client in connected(Parrot("I add.\n" + WHOLE + "\n" + broken), ByteTokenizer()):
        answer = (await client.chat([user("Add.")], tools=[ADD]))["choices"][0]
    assert answer["finish_reason"] == "tool_calls"
    (one,) = answer["message"]["tool_calls"]
    assert json.loads(one["function"]["arguments"]) == {"a": 1}
    assert answer["message"]["content"] == "I add.\n" + broken.strip()


@pytest.mark.parametrize("arguments", ['{"k": "A', "[1]", "nonsense"])
async def test_a_history_with_broken_arguments_is_shown_as_it_is(arguments: str) -> None:
    assert f'{{"name": "add", "arguments": {arguments}}}' in await shown(asks(call("A", arguments)), result("A"))


@pytest.mark.parametrize("arguments", ["", None])
async def test_no_arguments_are_an_empty_object(arguments: Any) -> None:
    assert '"arguments": {}' in await shown(asks(call("A", arguments)), result("A"))


async def test_a_call_without_a_name_is_refused() -> None:
    async for client in connected(Parrot("ok"), ByteTokenizer()):
        for strange in ({"id": "A"}, {"id": "A", "function": {}}, "add"):
            refused = await client.chat([user("Go."), {"role": "assistant", "content": "", "tool_calls": [strange]}])
            assert "no function with a name" in refused["error"]["message"]
