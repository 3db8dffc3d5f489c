"""Answers of MCP servers over HTTP are unpacked within their bound."""

from __future__ import annotations

import gzip
import tracemalloc

import pytest

from agentrl.tools.builtin.mcp.connection import Connection, ServerLost
from agentrl.tools.builtin.mcp.settings import McpSettings
from tests.tools.builtin.http.servers import answer, saying, talking

pytest.importorskip("mcp", reason="pip install 'agentrl-framework[mcp]'")

MIB = 1 << 20
JSON = "Content-Type: application/json"


@pytest.mark.parametrize(
    ("body", "encoding", "said"),
    [
        (gzip.compress(bytes(256 * MIB), 6), "gzip", "more than 1 MiB"),
        (bytes(2 * MIB), "identity", "more than 1 MiB"),
        (b"x", "br", "'br', which was not asked for"),
    ],
)
async def test_an_answer_above_the_bound_is_left(body: bytes, encoding: str, said: str) -> None:
    async with talking(saying(answer(body, JSON, f"Content-Encoding: {encoding}")), until=b"}") as port:
        settings = McpSettings(url=f"http://127.0.0.1:{port}/mcp", max_bytes=MIB, timeout_s=300)
        tracemalloc.start()
        try:
            with pytest.raises(ServerLost, match=said):
                await Connection(settings).open()
            most = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert most < 20 * MIB, most / MIB
