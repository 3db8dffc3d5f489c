"""Which hosts a browser's gate lets through, and how it asks the proxy of a sandbox."""

from __future__ import annotations

import asyncio
import importlib.util
from typing import Any

import pytest

from agentrl.types.paths import data_path

pytestmark = pytest.mark.slow


def gate() -> Any:
    spec = importlib.util.spec_from_file_location("gate", data_path("tools", "browser", "gate.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("entry", "host", "port", "lets"), [
    ("a.test", "a.test", 443, True),
    ("a.test", "a.test", 8000, False),
    ("a.test:8000", "a.test", 8000, True),
    ("*.a.test", "x.a.test", 80, True),
    ("*.a.test", "a.test", 80, False),
    ("[::1]:8000", "::1", 8000, True),
    ("[::1]:8000", "::1", 80, False),
    ("::1", "::1", 80, True),
    ("[::1]", "::1", 443, True),
])  # fmt: skip
def test_entries(entry: str, host: str, port: int, lets: bool) -> None:
    assert gate().allowed([entry], host, port) == lets


@pytest.mark.parametrize(
    ("answer", "said"), [("403 no", "Denied"), ("502 gone", "ConnectionError"), ("", "Incomplete")]
)
async def test_a_proxy_that_refuses_is_left(answer: str, said: str) -> None:
    asked, left = bytearray(), asyncio.Event()

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.extend(await reader.readuntil(b"\r\n\r\n"))
        if answer:
            writer.write(f"HTTP/1.1 {answer}\r\n\r\n".encode())
        else:
            writer.write_eof()
        await reader.read()
        left.set()
        writer.close()

    server = await asyncio.start_server(proxy, "127.0.0.1", 0)
    place = server.sockets[0].getsockname()[:2]
    with pytest.raises(Exception, match="") as refused:
        await gate().reach("2001:db8::1", 443, place)
    await left.wait()
    assert said in type(refused.value).__name__
    assert asked.startswith(b"CONNECT [2001:db8::1]:443 HTTP/1.1\r\n")
    server.close()
