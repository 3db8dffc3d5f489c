"""Clients of servers of others: for SDKs that people use, and the one that judges and searches share."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import agentrl
from agentrl.types.errors import RecipeError, ToolError
from agentrl.types.http import client
from agentrl.types.http.client import Unanswered, asked
from tests.engines.http_server import serving
from tests.tools.builtin.http.servers import answer, saying, talking

HELLO = answer(b"hello")


def keeping(connections: list[int], body: bytes = b"hello") -> Callable[..., Awaitable[None]]:
    """Answers every request of a connection. `connections`: counts those that are open."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(0)
        try:
            while True:
                connections[-1] += 1
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
                await reader.readuntil(b"\r\n\r\n")
        finally:
            connections[-1] *= -1

    return talk


def test_judges_and_searches_of_a_loop_share_connections_that_end_with_it() -> None:
    connections: list[int] = []

    async def main() -> None:
        async with talking(keeping(connections)) as port:
            for _ in range(5):
                reply = await asked("GET", f"http://127.0.0.1:{port}/", seconds=300, most=100)
                assert reply == (200, b"hello")
            assert connections == [5], "of one connection"
            assert len(client._clients) == 1

    for _ in range(2):
        asyncio.run(main())
        assert len(client._clients) == 0
        connections.clear()


async def test_a_key_is_told_to_nobody_else() -> None:
    heads: list[bytes] = []

    async def other(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(b"")

    async with talking(other) as port:
        moved = f"HTTP/1.1 302 F\r\nLocation: http://127.0.0.1:{port}/\r\nContent-Length: 0\r\n\r\n".encode()
        async with talking(saying(moved)) as first:
            with pytest.raises(Unanswered, match=f"status 302, which leads to http://127.0.0.1:{port}/"):
                await asked("GET", f"http://127.0.0.1:{first}/", seconds=300, most=9, headers={"X-API-KEY": "secret"})
    assert heads == []


async def test_half_a_character_is_a_question_mark() -> None:
    """An agent may write it. That it cannot be sent would void what it lost."""

    async def echo(path: str, body: Any) -> Any:
        return body

    async with serving(echo) as url:
        given = {"a": "\ud83d", "b": "ä"}
        said = await asked("POST", f"{url}/", body=given, query={"q": "\udc00"}, seconds=300, most=99)
    assert json.loads(said.body) == {"a": "?", "b": "ä"}


async def test_cookies_of_a_judge_are_left() -> None:
    heads: list[bytes] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(answer(b"", "Set-Cookie: a=b"))
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    for _ in range(2):
        await asked("GET", f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/", seconds=300, most=9)
    server.close()
    assert len(heads) == 2
    assert not any(b"cookie" in head.lower() for head in heads)


@pytest.mark.parametrize("url", ["http://a:0/", "http://\n/", "ftp://a/", "tea"])
async def test_a_url_that_is_none_is_the_recipes_fault(url: str) -> None:
    with pytest.raises(RecipeError, match="is no URL"):
        await asked("GET", url, seconds=300, most=9)


# SDKs.


def completion(text: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    return {
        "id": "1", "object": "chat.completion", "created": 1, "model": "m",
        "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
    }  # fmt: skip


async def test_the_sdk_of_openai_takes_it() -> None:
    openai = pytest.importorskip("openai")

    async def reply(path: str, body: Any) -> Any:
        return completion(body["messages"][0]["content"])

    async with serving(reply) as url:
        allowed = url.removeprefix("http://")
        http = agentrl.http_client(allow=[allowed])
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k", http_client=http, max_retries=0) as sdk:
            said = await sdk.chat.completions.create(model="m", messages=[{"role": "user", "content": "tea"}])
            assert said.choices[0].message.content == "tea"
        assert http.is_closed
        http = agentrl.http_client()  # a public one, and this machine is not
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k", http_client=http, max_retries=0) as sdk:
            with pytest.raises(ToolError, match="not a public address"):
                await sdk.models.list()


async def test_the_sdk_of_openai_reads_events_and_no_bomb() -> None:
    openai = pytest.importorskip("openai")
    chunk = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    parts = [chunk | {"choices": [{"index": 0, "delta": {"content": text}}]} for text in ("te", "a")]
    events = "".join(f"data: {json.dumps(part)}\n\n" for part in parts) + "data: [DONE]\n\n"
    question = {"model": "m", "messages": [{"role": "user", "content": "?"}]}
    for body, headers, said in (
        (events.encode(), ("Content-Type: text/event-stream",), "tea"),
        (gzip.compress(events.encode()), ("Content-Type: text/event-stream", "Content-Encoding: gzip"), "tea"),
        (
            gzip.compress(bytes(32 << 20)),
            ("Content-Type: application/json", "Content-Encoding: gzip"),
            "more than 1 MiB",
        ),
    ):
        async with talking(saying(answer(body, *headers)), until=b"}") as port:
            http = agentrl.http_client(allow=[f"127.0.0.1:{port}"], max_bytes=1 << 20)
            base = f"http://127.0.0.1:{port}/v1"
            async with openai.AsyncOpenAI(base_url=base, api_key="k", http_client=http, max_retries=0) as sdk:
                if said == "tea":
                    told = await sdk.chat.completions.create(**question, stream=True)
                    assert "".join([part.choices[0].delta.content async for part in told]) == "tea"
                else:
                    with pytest.raises(openai.APIConnectionError) as refused:
                        await sdk.chat.completions.create(**question)
                    assert said in str(refused.value.__cause__)


async def test_the_sdk_of_anthropic_takes_it() -> None:
    anthropic = pytest.importorskip("anthropic")

    async def reply(path: str, body: Any) -> Any:
        return {
            "id": "1", "type": "message", "role": "assistant", "model": "m", "stop_reason": "end_turn",
            "content": [{"type": "text", "text": "tea"}], "usage": {"input_tokens": 1, "output_tokens": 1},
        }  # fmt: skip

    async with serving(reply) as url:
        http = agentrl.http_client(allow=[url.removeprefix("http://")])
        async with anthropic.AsyncAnthropic(base_url=url, api_key="k", http_client=http, max_retries=0) as sdk:
            said = await sdk.messages.create(model="m", max_tokens=9, messages=[{"role": "user", "content": "?"}])
    assert said.content[0].text == "tea"
