"""Who may ask the proxy, and how much: bounds come before work, and what is refused leaves nothing behind."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from agentrl.chat.tokenizer import ByteTokenizer
from agentrl.proxy import door, server
from agentrl.proxy.door import BODY_S, MOST_ITEMS, MOST_REPLIES, is_ours
from agentrl.proxy.recorder import PIECE
from agentrl.types.clocks.heartbeat import Heartbeat
from tests.clock import Clock
from tests.proxy.world import Client, Parrot, connected, user
from tests.waiting import turns, until_async

PATHS = ("/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1beta/models/m:generateContent")
GOOD: dict[str, Any] = {"messages": [user("Hello.")], "max_tokens": 5}


@asynccontextmanager
async def program(*texts: str, **more: Any) -> AsyncIterator[Client]:
    async for client in connected(Parrot(*texts), ByteTokenizer(), **more):
        yield client


async def posted(client: Client, path: str, body: Any, **headers: str) -> tuple[int, dict[str, Any]]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    async with client.http.post(client.url + path, data=data, headers=given) as reply:
        return reply.status, await reply.json() if "json" in reply.content_type else {"text": await reply.text()}


@pytest.mark.parametrize(
    ("host", "ours"),
    [
        ("127.0.0.1:8300", True), ("[::1]:8300", True), ("10.0.0.7", True), ("localhost", True), ("LOCALHOST:1", True),
        ("localhost.:80", True), ("node7:8300", True), ("host.docker.internal:8300", True),
        ("a.svc.cluster.local", True),
        ("proxy.example.org:80", True), ("evil.example.org", False), ("127.0.0.1.evil.com:8300", False),
        ("proxy.example.org.evil.com", False), ("localhost.evil.com", False), ("", False), (":8300", False),
        ("[::1", False), ("evil.com#127.0.0.1", False), ("127.0.0.1@evil.com", False), ("xlocal.com", False),
    ],
)  # fmt: skip
def test_the_hosts_that_can_only_be_this_server(host: str, ours: bool) -> None:
    assert is_ours(host, {"proxy.example.org"}) is ours


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example.org:8300"},  # a name that was pointed here
        {"Host": "evil.example.org"},
        {"Origin": "https://evil.example.org"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},  # another server of this machine
        {"Origin": "http://["},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
    ],
)
@pytest.mark.parametrize("path", ["/s/s/v1/chat/completions", "/s/s/end", "/v1/messages", "/elsewhere"])
async def test_pages_of_browsers_are_refused(path: str, headers: dict[str, str]) -> None:
    async with program("hi", "ho") as client:
        status, said = await posted(client, path, {**GOOD, "reward": 1}, Content_Type="text/plain", **headers)
        assert (status, said["error"]["code"]) == (403, "foreign")
        assert not client.proxy.sessions
        async with client.http.get(f"{client.url}/health", headers={"Host": "evil.example.org"}) as reply:
            assert reply.status == 403


async def test_programs_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    async with program("hi", "ho", "he") as client:
        client.proxy.names = {"proxy.example.org"}
        own = client.url.removeprefix("http://")
        for headers in ({"Host": "proxy.example.org"}, {"Origin": client.url}, {"Sec_Fetch_Site": "none", "Host": own}):
            status, _ = await posted(client, "/s/s/v1/chat/completions", GOOD, **headers)
            assert status == 200


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({**GOOD, "n": MOST_REPLIES + 1}, "at most 64 replies"),
        ({**GOOD, "n": 10_000}, "at most 64 replies"),
        ({**GOOD, "messages": [user("a")] * (MOST_ITEMS + 1)}, "lists 10001 items"),
        ({**GOOD, "tools": [{}] * (MOST_ITEMS + 1)}, "lists 10001 items"),
        ({**GOOD, "stop": ["a"] * (MOST_ITEMS + 1)}, "lists 10001 items"),
    ],
)
async def test_bounds_come_before_work(body: dict[str, Any], told: str) -> None:
    async with program("hi") as client:
        status, said = await posted(client, "/s/s/v1/chat/completions", body)
        assert status == 400
        assert told in said["error"]["message"]
        assert not client.proxy.sessions


async def test_a_text_that_cannot_fit_is_counted_in_pieces_and_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []
    encode = ByteTokenizer.encode

    def counts(self: ByteTokenizer, text: str, special: bool) -> list[int]:
        counted.append(len(text))
        return encode(self, text, special)

    monkeypatch.setattr(ByteTokenizer, "encode", counts)
    async with program("hi") as client:
        longest = Parrot.max_context
        for messages in ([user("x" * 20_000_000)], [user("x" * 1000)] * 9000):
            counted.clear()
            status, said = await posted(client, "/s/s/v1/chat/completions", {"messages": messages})
            assert (status, said["error"]["code"]) == (400, "context_length_exceeded")
            assert max(counted) <= PIECE
            assert sum(counted) <= longest + PIECE + 1000


async def test_others_are_served_while_a_long_text_is_counted() -> None:
    """A text of few tokens and many characters: the loop turns after each piece."""
    served = 0

    class Sparse(ByteTokenizer):
        def encode(self, text: str, special: bool) -> list[int]:
            nonlocal served
            if len(text) == PIECE:
                served += 1
                return [32]
            return super().encode(text, special)

    renderer_turns = 0
    async for client in connected(Parrot("hi"), Sparse()):

        async def beats() -> None:
            nonlocal renderer_turns
            while True:
                await asyncio.sleep(0)
                renderer_turns += 1

        beat = asyncio.create_task(beats())
        recorder = client.proxy.recorder("s")
        before = renderer_turns
        await recorder._must_fit([user("x" * (PIECE * 50))], [])
        assert served == 50
        assert renderer_turns - before >= 49
        beat.cancel()


@pytest.mark.parametrize("path", PATHS)
async def test_requests_that_are_refused_open_no_session(path: str) -> None:
    bad: list[Any] = [{}, {"messages": []}, {"messages": "x", "input": 5}, {"messages": [{}], "input": [{}]}, []]
    async with program() as client:
        for number in range(50):
            status, _ = await posted(client, f"/s/s{number}{path}", bad[number % len(bad)])
            assert status == 400
        assert not client.proxy.sessions
        assert not client.proxy._taken


async def test_a_session_ends_with_a_failed_first_request_only_if_nothing_else_is_under_way() -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    class Slow(Parrot):
        async def generate(self, *given: Any) -> Any:
            begun.set()
            await go.wait()
            return await super().generate(*given)

    async for client in connected(Slow("hi"), ByteTokenizer()):
        first = asyncio.create_task(client.say([user("a")]))
        await begun.wait()
        assert (await posted(client, "/s/s/v1/chat/completions", {}))[0] == 400
        assert set(client.proxy.sessions) == {"s"}
        go.set()
        await first
        assert len((await client.end()).turns) == 1


async def test_the_number_of_open_sessions_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MOST_SESSIONS", 2)
    async with program(*["hi"] * 9) as client:
        for name in "ab":
            await client.say([user("x")], name)
        status, said = await posted(client, "/s/c/v1/chat/completions", GOOD)
        assert (status, said["error"]["code"]) == (503, "too_many_sessions")
        await client.say([user("y")], "a")
        await client.end("b")
        await client.say([user("x")], "c")


MALFORMED: list[Any] = [None, 5, "x", [], [None], [5], ["x"], [[]], {}, {"a": 1}, True, -1, 1e400, "\ud800"]


def wholes() -> dict[str, dict[str, Any]]:
    """A whole request of each API."""
    calls = [{"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}]
    said = {"name": "add", "description": "", "parameters": {"type": "object"}}
    chat = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": [{"type": "text", "text": "t"}]},
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c", "content": "r"},
    ]
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "t"}]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "add", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "r"}]},
    ]
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "t"}]},
        {"type": "function_call", "call_id": "c", "name": "add", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "r"},
    ]
    contents = [
        {"role": "user", "parts": [{"text": "t"}]},
        {"role": "model", "parts": [{"functionCall": {"id": "c", "name": "add", "args": {}}}]},
        {"role": "user", "parts": [{"functionResponse": {"id": "c", "name": "add", "response": {"output": "r"}}}]},
    ]
    both = {"model": "m", "stream": False}
    own = {"name": "add", "description": "", "input_schema": {"type": "object"}}
    return {
        PATHS[0]: both | {"messages": chat, "tools": [{"type": "function", "function": said}], "stop": ["x"],
                          "max_tokens": 4, "n": 1, "stream_options": {}, "tool_choice": "auto"},
        PATHS[1]: both | {"messages": messages, "tools": [own], "stop_sequences": ["x"], "max_tokens": 4,
                          "system": "s"},
        PATHS[2]: both | {"input": items, "tools": [{"type": "function", **said}], "instructions": "s",
                          "max_output_tokens": 4, "previous_response_id": None},
        PATHS[3]: {"contents": contents, "tools": [{"functionDeclarations": [said]}],
                   "systemInstruction": {"parts": [{"text": "s"}]}, "generationConfig": {"maxOutputTokens": 4},
                   "toolConfig": {"functionCallingConfig": {"mode": "AUTO"}}},
    }  # fmt: skip


def bodies(whole: dict[str, Any]) -> list[dict[str, Any]]:
    """The request, and ones with something else at a place of it."""
    found = [whole]

    def walk(node: Any, rebuild: Any) -> None:
        for key in list(node) if isinstance(node, dict) else range(len(node)):
            for strange in MALFORMED:
                other = dict(node) if isinstance(node, dict) else list(node)
                other[key] = strange
                found.append(rebuild(other))
            if isinstance(node[key], dict | list):

                def deeper(inner: Any, node: Any = node, key: Any = key, rebuild: Any = rebuild) -> Any:
                    other = dict(node) if isinstance(node, dict) else list(node)
                    other[key] = inner
                    return rebuild(other)

                walk(node[key], deeper)

    walk(whole, lambda body: body)
    return found


@pytest.mark.parametrize("path", PATHS)
async def test_no_request_is_the_proxy_s_own_fault(path: str) -> None:
    class Answers(Parrot):
        async def generate(self, *given: Any) -> Any:
            self.texts = ["hi"]
            return await super().generate(*given)

    statuses = set()
    async for client in connected(Answers(), ByteTokenizer()):
        for number, body in enumerate(bodies(wholes()[path])[::7]):
            status, said = await posted(client, f"/s/s{number}{path}", body)
            statuses.add(status)
            assert status in (200, 400), (body, said)
    assert statuses == {200, 400}


async def test_a_second_request_with_a_strange_history_is_not_either() -> None:
    call = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    tool = {"type": "function", "function": {"name": "add", "parameters": {}}}
    async with program(*[call, "hi"] * 40) as client:
        for number, strange in enumerate([*MALFORMED, [["c"]], {"id": []}]):
            name = f"s{number}"
            said = await client.say([user("a")], name, tools=[tool])
            result = {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": "1"}
            for messages in (
                [user("a"), said, result | {"tool_call_id": strange}],
                [user("a"), said, result | {"content": strange}],
                [user("a"), said | {"tool_calls": strange}, result],
                [user("a"), said, result | {"name": strange}, {"role": strange, "content": "x"}],
            ):
                client.proxy.context.engine.texts = [call, "hi"]  # type: ignore[attr-defined]
                body = {"messages": messages, "tools": [tool]}
                status, told = await posted(client, f"/s/{name}/v1/chat/completions", body)
                assert status in (200, 400), (messages, told)
            client.proxy.context.engine.texts = [call, "hi"]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (b'{"messages": [{"role": "user", "content": [' + b"[]," * 600_000 + b"1]}]}", {}),
        (b'{"messages": ' + b"[" * 600_000, {}),
        ('{"messages": 1}'.encode("utf-7"), {"Content-Type": "application/json; charset=utf-7"}),
        ('{"messages": 1}'.encode("utf-16"), {"Content-Type": "application/json; charset=utf-16"}),
    ],
    ids=["values", "brackets", "utf-7", "utf-16"],
)
async def test_a_body_of_many_values_is_refused_before_it_is_read(body: bytes, headers: dict[str, str]) -> None:
    """The stalls fixture sees to it that nobody waits."""
    async with program("ok") as client:
        status, said = await posted(client, "/s/s/v1/chat/completions", body, **headers)
        assert status == 400, said
        assert "not JSON" in json.dumps(said)
        assert (await posted(client, "/s/s/v1/chat/completions", GOOD))[0] == 200


async def opened(client: Client, sent: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    port = int(client.url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    await writer.drain()
    return reader, writer


async def test_a_body_that_does_not_arrive_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, waits = Clock(monkeypatch), asyncio.Event()
    read = aiohttp.web.Request.read

    async def reads(self: aiohttp.web.Request) -> bytes:
        waits.set()
        return await read(self)

    monkeypatch.setattr(aiohttp.web.Request, "read", reads)
    async with program() as client:
        head = b"POST /s/s/v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{"
        reader, writer = await opened(client, head)
        await waits.wait()
        await turns()
        clock.forward(BODY_S + 1)
        assert b" 408 " in await reader.readline()
        assert not client.proxy.sessions
        writer.close()


async def test_a_session_does_not_end_because_the_proxy_stood_still(monkeypatch: pytest.MonkeyPatch) -> None:
    async with program("hi") as client:
        await client.say([user("a")])
        recorder = client.proxy.sessions["s"]
        lived = recorder.touched
        for now, open_sessions in ((lived + 59, 1), (lived + 61, 0)):
            monkeypatch.setattr(Heartbeat, "lived", lambda self, now=now: now)
            sweep = asyncio.create_task(client.proxy._sweep())
            client.proxy.idle_s = 60.0
            monkeypatch.setattr(server.asyncio, "sleep", _at_once)  # type: ignore[attr-defined]
            await until_async(lambda count=open_sessions: len(client.proxy.sessions) == count)
            monkeypatch.undo()
            sweep.cancel()


_sleep = asyncio.sleep


async def _at_once(seconds: float) -> None:
    await _sleep(0)


def test_the_bounds_are_told() -> None:
    assert (door.MOST_BYTES, door.MOST_ITEMS, door.MOST_REPLIES) == (32 << 20, 10_000, 64)
