"""Replies of servers of models, judges and tools are bounded, packed or not: the driver stays small."""

from __future__ import annotations

import gzip
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from agentrl.engines.http import HttpClient
from agentrl.rewards.functions.judges.client import Judge
from agentrl.tools.builtin.search.requests import ask
from agentrl.types.errors import EngineError, InfraError

from .http_server import serving

MIB = 1 << 20


@pytest.fixture(scope="module")
def packed() -> bytes:
    """A bomb of 256 KiB. Of a fourth of it comes all that is taken."""
    return gzip.compress(bytes(256 * MIB), 6)


async def engine(url: str, folder: Path) -> Any:
    client = HttpClient(timeout_s=60)
    try:
        return await client.post(f"{url}/v1", {}, dict[str, Any])
    finally:
        await client.close()


async def tool(url: str, folder: Path) -> Any:
    return await ask("POST", f"{url}/v1", body={}, timeout_s=60, pause_s=0.0)


async def judge(url: str, folder: Path) -> Any:
    asked = Judge(url=url, model="m", retries=1, backoff_s=0.0, cache=str(folder))
    return await asked.ask([lambda most: "Is it?"], str)


CLIENTS: list[Callable[[str, Path], Awaitable[Any]]] = [engine, tool, judge]


@pytest.mark.parametrize("code", [200, 400, 500])
@pytest.mark.parametrize("client", CLIENTS)
async def test_a_packed_bomb_is_an_error_of_the_server(client: Any, code: int, packed: bytes, tmp_path: Path) -> None:
    async def bomb(path: str, body: Any) -> web.Response:
        return web.Response(body=packed, status=code, headers={"Content-Encoding": "gzip"})

    async with serving(bomb) as url:
        tracemalloc.start()
        try:
            with pytest.raises((EngineError, InfraError), match="more than (16|8) MiB"):
                await client(url, tmp_path)
            most = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert most < 50 * MIB, most / MIB


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_reply_without_end_is_left(client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = 0

    async def endless(path: str, body: Any) -> web.Response:
        async def parts() -> AsyncIterator[bytes]:
            nonlocal sent
            while True:
                sent += MIB
                yield bytes(MIB)

        return web.Response(body=parts())

    async with serving(endless) as url:
        with pytest.raises((EngineError, InfraError), match="more than (64|8) MiB"):
            await client(url, tmp_path)
    assert sent < 400 * MIB


async def test_a_packed_reply_that_is_small_is_read(tmp_path: Path) -> None:
    said = b'{"choices": [{"message": {"content": "yes"}}]}'

    async def packed(path: str, body: Any) -> web.Response:
        return web.Response(body=gzip.compress(said), headers={"Content-Encoding": "gzip"})

    async with serving(packed) as url:
        assert (await engine(url, tmp_path))["choices"][0]["message"]["content"] == "yes"
        assert await tool(url, tmp_path) == await engine(url, tmp_path)
        assert (await judge(url, tmp_path))[0] == ["yes"]
