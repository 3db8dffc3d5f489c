"""Requests that would cost the proxy far more than they cost who sends them: work and memory stay in proportion."""

from __future__ import annotations

import json
import logging
import time
from typing import Any

import pytest

from agentrl.chat.foreign import chat_messages
from agentrl.chat.formats.native_calls import in_call_order
from agentrl.chat.tokenizer import ByteTokenizer
from agentrl.proxy import server
from agentrl.proxy.dialects.dialect import joined
from agentrl.proxy.dialects.gemini import GenerateContent
from agentrl.proxy.door import texts_of, texts_of_messages
from agentrl.proxy.messages import MOST_STOPS, BadRequest
from agentrl.proxy.recorder import PIECE
from agentrl.proxy.web import MOST_ANSWER, Closing
from agentrl.rollouts.programs.server import MOST_STRAYS, ProgramServer
from agentrl.types.errors import TaskError
from tests.proxy.test_door import GOOD, PATHS, posted, program
from tests.proxy.world import Parrot, connected, user

LONG_S = 6.0
"""Processor time of what takes milliseconds, and took minutes."""


def spent(began: float) -> float:
    return time.process_time() - began


def gemini(parts: list[Any], results: list[Any]) -> dict[str, Any]:
    return {
        "contents": [
            {"role": "user", "parts": [{"text": "Go."}]},
            {"role": "model", "parts": parts},
            {"role": "user", "parts": results},
        ]
    }


@pytest.mark.parametrize("named", [True, False])
def test_thousands_of_calls_find_their_results_at_once(named: bool) -> None:
    """By id, where results name them, and else by their order."""
    count, id = 1500, "x" * 30
    ids = [{"id": f"{id}{k}"} if named else {} for k in range(count)]
    calls = [{"functionCall": {"name": "add", "args": {}, **each}} for each in ids]
    results = [
        {"functionResponse": {"name": "add", "response": {"output": f"{k}"}, **each}} for k, each in enumerate(ids)
    ]
    began = time.process_time()
    messages = GenerateContent().read(gemini(calls, results), {})["messages"]
    assert spent(began) < LONG_S
    asked = [call["id"] for call in messages[1]["tool_calls"]]
    assert [message["tool_call_id"] for message in messages[2:]] == asked
    assert [message["content"] for message in messages[2:]] == [f"{k}" for k in range(count)]


def test_a_result_takes_the_call_of_its_name_that_no_other_result_names() -> None:
    calls = [
        {"functionCall": {"name": name, "id": id}} for name, id in (("a", "1"), ("a", "2"), ("b", "3"), ("a", "4"))
    ]
    results: list[dict[str, Any]] = [
        {"name": "a"},
        {"name": "b"},
        {"name": "c"},
        {"name": "a", "id": "1"},
        {"name": "z"},
    ]
    body = gemini(calls, [{"functionResponse": {**each, "response": {}}} for each in results])
    messages = GenerateContent().read(body, {})["messages"]
    assert [message["tool_call_id"] for message in messages[2:]] == ["2", "3", "4", "1", None]


def test_thousands_of_results_are_put_in_order_at_once() -> None:
    calls = [{"id": f"{k}", "function": {"name": "a", "arguments": "{}"}} for k in range(20_000)]
    results = [{"role": "tool", "tool_call_id": f"{k}", "content": f"{k}"} for k in reversed(range(15_000, 20_000))]
    messages: list[dict[str, Any]] = [{"role": "assistant", "content": "", "tool_calls": calls}, *results]
    began = time.process_time()
    ordered = in_call_order(messages)
    assert spent(began) < LONG_S
    assert [message["content"] for message in ordered[15_001:]] == [f"{k}" for k in range(15_000, 20_000)]


def test_thousands_of_replies_are_joined_at_once() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "a", "arguments": "{}"}}
    one: dict[str, Any] = {"role": "assistant", "content": "x" * 3000}
    began = time.process_time()
    found = joined([user("a"), *[one] * 4000, {**one, "tool_calls": [call]}, user("b"), one, user("c")])
    assert spent(began) < LONG_S
    assert [message["role"] for message in found] == ["user", "assistant", "user", "assistant", "user"]
    assert len(found[1]["content"]) == 4001 * 3000
    assert found[1]["tool_calls"] == [call]
    assert found[3] is one


async def test_of_refused_requests_nothing_is_kept() -> None:
    async with program("hi") as client:
        await client.say([user("a")])
        recorder = client.proxy.sessions["s"]
        before = {key: len(same) for key, same in recorder._asks.items()}
        for number in range(40):
            body = {"messages": [user("a"), {"role": "assistant", "content": f"{number // 20}"}]}
            assert (await posted(client, "/s/s/v1/chat/completions", body))[0] == 400
        assert {key: len(same) for key, same in recorder._asks.items()} == before
        assert len((await client.end()).turns) == 1


async def test_a_retry_of_an_answered_request_still_counts() -> None:
    async with program("one", "two") as client:
        await client.say([user("a")])
        assert (await posted(client, "/s/s/v1/chat/completions", {"messages": []}))[0] == 400
        await client.say([user("a")])
        assert [turn.text for turn in (await client.end()).turns] == ["two"]


WIDE = 400_000
"""Characters: far more than the context of the parrot."""


@pytest.mark.parametrize(
    ("messages", "tools"),
    [
        ([user("")], {"x": ["9" * 3 for _ in range(WIDE // 3)]}),
        ([user("")], {"x": [10**3000] * (WIDE // 3000)}),
        ([user("")], {"properties": {"k" * WIDE: {}}}),
        ([user("")], {"properties": {"image_url": "x" * WIDE}}),
        ([user("")], {"properties": {"type": "image_url", "image_url": {"url": "x" * WIDE}}}),
        ([{"role": "user", "content": [{"type": "text", "text": "x"}] * (WIDE // 4)}], {}),
        ([{**user(""), "image_url": "x" * WIDE}], {}),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:", "x": "y" * WIDE}}]}], {}),
        (
            [
                user(""),
                {
                    "role": "assistant",
                    "content": "",
                    "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": {"k" * WIDE: 1}}}],
                },
                user(""),
            ],
            {},
        ),
    ],
    ids=["texts", "numbers", "names", "pictures", "parts", "letters", "beside", "in-a-picture", "arguments"],
)
async def test_whatever_a_template_writes_is_counted_before_it_is_written(
    messages: list[dict[str, Any]], tools: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[int] = []
    encode = ByteTokenizer.encode

    def counts(self: ByteTokenizer, text: str, special: bool) -> list[int]:
        counted.append(len(text))
        return encode(self, text, special)

    function = {"name": "f", "parameters": {"type": "object", **tools}}
    body = {"messages": messages, "tools": [{"type": "function", "function": function}]}
    async with program("hi") as client:
        monkeypatch.setattr(ByteTokenizer, "encode", counts)
        status, said = await posted(client, "/s/s/v1/chat/completions", body)
    assert (status, said["error"]["code"]) == (400, "context_length_exceeded")
    assert max(counted) <= PIECE


def test_of_a_message_only_what_is_written_is_counted() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "low"}}
    content = [{"type": "text", "text": "a"}, picture, {"type": "text", "text": "b", "x": 3}]
    said = {"role": "assistant", "content": "c", "n": [1.5, None, True]}
    messages: list[dict[str, Any]] = [{"role": "user", "content": content}, said]
    assert [*texts_of_messages(messages)] == [
        "user", "a", "detail", "low", "text", "x", "b", "0", "assistant", "c", "0.0", "0",
    ]  # fmt: skip
    assert [*texts_of([{"a": {"b": ["c"]}}])] == ["a", "b", "c"]


@pytest.mark.parametrize("depth", [200, 800, 850, 900, 920, 940, 950, 960, 970, 980, 990, 1000])
async def test_no_depth_of_a_request_is_the_proxy_s_own_fault(depth: int) -> None:
    """Some depths can be read, and are too deep for what comes next."""
    deep: Any = "[" * depth + "]" * depth
    whole = json.dumps({"messages": [{**user("a"), "x": "DEEP"}]}).replace('"DEEP"', deep)
    async with program("hi") as client:
        status, said = await posted(client, "/s/s/v1/chat/completions", whole.encode())
        assert status in (200, 400), said


@pytest.mark.parametrize(
    ("path", "more"),
    [
        (PATHS[0], {"messages": [user("a")], "stop": ["x"] * (MOST_STOPS + 1)}),
        (PATHS[1], {"messages": [user("a")], "stop_sequences": ["x"] * (MOST_STOPS + 1)}),
        (
            PATHS[3],
            {
                "contents": [{"parts": [{"text": "a"}]}],
                "generationConfig": {"stopSequences": ["x"] * 200_000},
            },
        ),
    ],
)
async def test_the_number_of_stop_strings_is_bounded(path: str, more: dict[str, Any]) -> None:
    async with program("hi") as client:
        status, said = await posted(client, f"/s/s{path}", more)
        assert status == 400
        assert f"at most {MOST_STOPS} are taken" in said["error"]["message"]


def test_a_call_written_as_text_is_no_bomb() -> None:
    with pytest.raises(TaskError, match="is a call, and its value is"):
        chat_messages([{"role": "function_call", "content": json.dumps([{"name": "a"}] * 300_000)}], "input")


def test_an_answer_is_bounded() -> None:
    """Rewards compare it in this process, and a program may send 32 MiB."""
    assert Closing.of({"answer": "x" * MOST_ANSWER}).answer == "x" * MOST_ANSWER
    with pytest.raises(BadRequest, match=f"longer than the {MOST_ANSWER} characters"):
        Closing.of({"answer": "x" * (MOST_ANSWER + 1)})


async def test_requests_that_go_astray_are_logged_as_they_were_sent_and_not_for_ever(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "MOST_STRAYS", 3)
    async with program() as client:
        for path in ("/a%0aforged%1b[2J", "/" + "b" * 5000, "/c", "/d", "/e"):
            assert (await posted(client, path, {}))[0] == 404
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(told) == 4
    assert "further requests of this kind are not logged" in told[-1]
    assert all(line.isprintable() and len(line) < 500 for line in told)


async def test_of_the_requests_of_a_program_that_go_astray_a_few_are_kept(caplog: pytest.LogCaptureFixture) -> None:
    served = ProgramServer()

    class Recorder:
        name, closing_rewards, turns = "e", False, ()

        def __init__(self) -> None:
            self.strays: list[str] = []

        def close(self) -> None:
            pass

    recorder: Any = Recorder()
    async with served.admit(recorder) as door:
        for _ in range(100):
            served.stray(door.key, "POST /x")
        assert len(recorder.strays) == MOST_STRAYS
    for _ in range(50):
        with pytest.raises(Exception, match="has ended"):
            served.recorder(door.key)
    assert len([record for record in caplog.records if "had ended" in record.getMessage()]) == 1


async def test_honest_requests_are_answered_beside_all_this() -> None:
    async for client in connected(Parrot("hi", "ho"), ByteTokenizer()):
        assert (await posted(client, "/s/s/v1/chat/completions", {**GOOD, "stop": ["x"] * MOST_STOPS}))[0] == 200
