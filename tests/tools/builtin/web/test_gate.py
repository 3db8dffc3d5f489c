"""Which hosts a browser's gate lets through, and how it asks the proxy of a sandbox."""

from __future__ import annotations

import asyncio
import importlib.util
import socket
from typing import Any

import pytest

from agentrl.types.paths import data_path

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _beside_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(data_path("tools", "shared")))


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
    assert gate().listed([entry], host, port) == lets


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
        await gate().reach("2001:db8::1", 443, place, [])
    await left.wait()
    assert said in type(refused.value).__name__
    assert asked.startswith(b"CONNECT [2001:db8::1]:443 HTTP/1.1\r\n")
    server.close()


@pytest.mark.parametrize(
    ("allow", "resolved", "reached"),
    [
        (["owned.test:{port}"], ["127.0.0.1"], False),
        (["owned.test:{port}", "127.0.0.1:{port}"], ["127.0.0.1"], True),
        (["owned.test:{port}"], ["10.0.0.1", "::ffff:127.0.0.1", "fe80::1"], False),
        (["*"], ["127.0.0.1"], True),
    ],
)
async def test_the_owner_of_a_listed_name_cannot_open_this_network(
    allow: list[str], resolved: list[str], reached: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"secret")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    real = socket.getaddrinfo

    def resolve(host: str, *words: Any, **settings: Any) -> Any:
        names = resolved if host == "owned.test" else [host]
        return [each for name in names for each in real(name, *words, **settings)]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    refused: list[str] = []
    door = gate().Gate([entry.format(port=port) for entry in allow], refused.append)
    reader, writer = await asyncio.open_connection("127.0.0.1", await door.open())
    name = b"owned.test"
    writer.write(b"\x05\x01\x00" + b"\x05\x01\x00\x03" + bytes([len(name)]) + name + port.to_bytes(2))
    _, answer = await reader.readexactly(2), await reader.readexactly(10)
    assert answer[1] == (0 if reached else 2)
    told = f"owned.test:{port} (at {', '.join(resolved)}: no public address, and not listed)"
    assert refused == ([] if reached else [told])
    if reached:
        assert await reader.read() == b"secret"
    writer.close()
    await door.close()
    server.close()


def test_a_name_that_looks_like_an_address_is_not_this_machine() -> None:
    own = ["localhost", "127.0.0.1", "127.9.9.9", "::1", "127.evil.test", "localhost.evil.test", "10.0.0.1"]
    assert [host for host in own if gate().is_loopback(host)] == own[:4]
