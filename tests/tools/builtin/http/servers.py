"""Servers for tests: proper ones, and ones that write bytes as they like."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from agentrl.tools.builtin.web import http as tool
from agentrl.tools.builtin.web.fetch import HttpSettings
from agentrl.tools.builtin.web.http import Http
from agentrl.tools.methods import toolbox

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def talking(talk: Talk, until: bytes = b"\r\n\r\n", **more: Any) -> AsyncIterator[int]:
    """A server that answers every connection by `talk` when it has read `until`; its port."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            await reader.readuntil(until)
            await talk(reader, writer)
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0, **more)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


def saying(data: bytes) -> Talk:
    """Writes bytes and closes."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()

    return talk


def endless(head: bytes, part: bytes, wait: float = 0.0) -> Talk:
    """Writes a head, and a part again and again until the reader goes."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        while True:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(wait)

    return talk


def answer(body: bytes, *headers: str) -> bytes:
    lines = ["HTTP/1.1 200 OK", f"Content-Length: {len(body)}", "Connection: close", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def read_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages are read in this process, as the helper process would: for tests that are about something else."""

    async def ask(function: Callable[..., Any], *arguments: Any, cpu_s: float) -> Any:
        return function(*json.loads(json.dumps(arguments)))

    monkeypatch.setattr(tool._HELPER, "ask", ask)


@asynccontextmanager
async def http(*ports: int, **settings: Any) -> AsyncIterator[Callable[..., Awaitable[str]]]:
    """`get` as a model calls it, of a tool that may reach these ports of this machine."""
    allow = [entry for port in ports for entry in (f"127.0.0.1:{port}", f"localhost:{port}")]
    opened = Http(HttpSettings.model_validate({"allow": allow, "timeout_s": 300.0, **settings}))

    async def get(url: str, **arguments: Any) -> str:
        return (await toolbox([opened])["get"].call({"url": url, **arguments})).text

    try:
        yield get
    finally:
        await opened.close()
