"""Bodies of MCP servers over HTTP are unpacked within their bound."""

from __future__ import annotations

import gzip
import tracemalloc

import pytest

from agentrl.tools.builtin.mcp.connection import _Bound

httpx2 = pytest.importorskip("httpx2", reason="pip install 'agentrl[mcp]'")

MIB = 1 << 20
EVENTS = {"Content-Type": "text/event-stream"}


async def read(body: bytes, headers: dict[str, str], most: int = MIB) -> bytes:
    def answer(request: object) -> object:
        return httpx2.Response(200, headers=headers, stream=httpx2.ByteStream(body))

    hooks = {"response": [_Bound(most)]}
    async with httpx2.AsyncClient(transport=httpx2.MockTransport(answer), event_hooks=hooks) as client:
        content: bytes = (await client.get("http://server/")).content
    return content


async def test_a_packed_bomb_ends_at_the_bound() -> None:
    body = gzip.compress(bytes(256 * MIB), 6)
    tracemalloc.start()
    try:
        with pytest.raises(httpx2.StreamError, match="more than 1.05 MB"):
            await read(body, {"Content-Encoding": "gzip"})
        assert tracemalloc.get_traced_memory()[1] < 10 * MIB
    finally:
        tracemalloc.stop()
    with pytest.raises(httpx2.StreamError, match="'br', which was not asked for"):
        await read(b"x", {"Content-Encoding": "br"})


async def test_what_fits_is_read_packed_or_not() -> None:
    for headers in ({}, EVENTS):
        assert await read(b"data: x\n\n", headers) == b"data: x\n\n"
        assert await read(gzip.compress(b"data: x\n\n"), {**headers, "Content-Encoding": "gzip"}) == b"data: x\n\n"
    assert len(await read(bytes(2 * MIB), EVENTS)) == 2 * MIB, "the SDK bounds events"
