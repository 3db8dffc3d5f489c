"""The transport to servers of others: which addresses are connected to, and what servers cannot do to the driver."""

from __future__ import annotations

import asyncio
import gzip
import socket
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpcore2
import httpx2
import pytest

from agentrl.types.errors import ToolError
from agentrl.types.http import client, transport
from agentrl.types.http.body import Bounds
from agentrl.types.http.client import http_client
from agentrl.types.http.transport import Transport, Unreadable
from tests.stalls import no_stalls
from tests.tools.builtin.http.servers import Talk, answer, endless, saying, talking
from tests.waiting import until_async

__all__ = ["no_stalls"]

MIB = 1 << 20
OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
HELLO = answer(b"hello")


async def got(port: int, **settings: Any) -> httpx2.Response:
    """The answer of a server of this machine to a client that may reach it."""
    given = {"allow": [f"127.0.0.1:{port}"], "timeout_s": 300.0, **settings}
    async with http_client(**given) as http:
        return await http.get(f"http://127.0.0.1:{port}/")


# Addresses.

INSIDE = """127.0.0.1 localhost localhost. LOCALHOST localhost.localdomain 127.0.0.1. 127.0.0.2 0.0.0.0 0 127.1 127.0.1
    2130706433 017700000001 0x7f000001 0x7f.1 0177.1 0177.0.0.1 127.0.0.01 [::1] [::] [::ffff:127.0.0.1] [::ffff:7f00:1]
    [0:0:0:0:0:ffff:7f00:0001] [::127.0.0.1] [64:ff9b::7f00:1] [64:ff9b::127.0.0.1] [2002:7f00:1::1] [fe80::1%25lo]
    [fc00::1] [::1%25lo] 10.0.0.1 172.16.0.1 192.168.0.1 169.254.169.254 100.64.0.1 224.0.0.1 255.255.255.255
    user:pw@127.0.0.1 example.org@127.0.0.1 127.0.0.1:{port}@localhost example.org\\@127.0.0.1 127.0.0.1\\@localhost
    %31%32%37.0.0.1 127%2e0.0.1 127.0.0.1%00.example.org 127.0.0.1%2f.example.org ①②⑦.0.0.1 １２７.0.0.1 127。0。0。1
    ⓛocalhost loca\u00adlhost [127.0.0.1] [localhost] -""".split()  # noqa: SIM905


@asynccontextmanager
async def inside(reached: list[str]) -> AsyncIterator[int]:
    """A server at both addresses of this machine; its port."""

    def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reached.append("")
        writer.write(HELLO)
        writer.close()

    one = await asyncio.start_server(handle, "127.0.0.1", 0)
    port = one.sockets[0].getsockname()[1]
    two = await asyncio.start_server(handle, "::1", port) if socket.has_dualstack_ipv6() else one
    try:
        yield port
    finally:
        one.close()
        two.close()


@pytest.mark.parametrize("allow", ["public", ["example.org", "*.example.org", "*.localdomain"]])
@pytest.mark.parametrize("host", INSIDE)
async def test_nothing_inside_is_reached(host: str, allow: Any) -> None:
    reached: list[str] = []
    async with inside(reached) as port, http_client(allow) as http:
        url = f"http://{host.format(port=port)}:{port}/"
        with pytest.raises((ToolError, httpx2.InvalidURL, httpx2.ConnectError, httpx2.UnsupportedProtocol)):
            await http.get(url)
    assert reached == []


@pytest.mark.parametrize("host", ["127.0.0.1", "LOCALHOST", "127.1", "0x7f.1", "2130706433", "a:b@127.0.0.1"])
async def test_they_do_lead_inside(host: str) -> None:
    reached: list[str] = []
    async with inside(reached) as port, http_client(allow="any") as http:
        assert (await http.get(f"http://{host}:{port}/")).text == "hello"
    assert reached == [""]


@pytest.mark.parametrize("url", ["ftp://a/", "http:///x", "http:a", "/x", "http://a:0/", "http://a:65536/", "ws://a/"])
async def test_what_is_no_url_of_the_web_is_named(url: str) -> None:
    async with http_client(allow="any") as http:
        with pytest.raises(httpx2.UnsupportedProtocol, match="is no URL of the web|protocol"):
            await http.get(url)


def names(monkeypatch: pytest.MonkeyPatch, *found: list[str]) -> list[str]:
    """Every name has these addresses, other ones each time that it is asked for; what is asked for."""
    asked: list[str] = []

    def look(host: str, *more: Any, **settings: Any) -> list[Any]:
        asked.append(host)
        addresses = found[min(len(asked), len(found)) - 1]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", look)
    return asked


async def test_an_address_is_connected_to_as_it_was_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_up = names(monkeypatch, ["93.184.216.34", "127.0.0.1", "10.0.0.1"], ["127.0.0.1"])
    tried: list[str] = []

    async def connect(self: Any, host: str, *more: Any) -> Any:
        tried.append(host)
        raise httpcore2.ConnectError("no network here")

    monkeypatch.setattr(httpcore2.AnyIOBackend, "connect_tcp", connect)
    async with http_client() as http:
        with pytest.raises(httpx2.ConnectError, match="no network here"):
            await http.get("http://rebound.example/")
        assert (looked_up, tried) == (["rebound.example"], ["93.184.216.34"]), "once, and without those inside"
        with pytest.raises(ToolError, match=r"is at 127\.0\.0\.1, which is not a public address"):
            await http.get("http://rebound.example/")
    assert tried == ["93.184.216.34"]


async def test_the_next_address_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    names(monkeypatch, ["127.0.0.9", "127.0.0.8", "127.0.0.1"])
    async with talking(saying(HELLO)) as port, http_client(allow="any") as http:
        assert (await http.get(f"http://several.example:{port}/")).text == "hello"


async def test_an_address_that_does_not_answer_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    names(monkeypatch, ["127.0.0.9", "127.0.0.1"])
    monkeypatch.setattr(transport, "NEXT_S", 0.05)
    connect = httpcore2.AnyIOBackend.connect_tcp

    async def some_hang(self: Any, host: str, port: int, timeout: float | None, *more: Any) -> Any:
        if host == "127.0.0.1":
            return await connect(self, host, port, timeout, *more)
        assert timeout is not None
        await asyncio.sleep(timeout)
        raise httpcore2.ConnectTimeout

    monkeypatch.setattr(httpcore2.AnyIOBackend, "connect_tcp", some_hang)
    async with talking(saying(HELLO)) as port, http_client(allow="any") as http:
        assert (await http.get(f"http://several.example:{port}/")).text == "hello"


async def test_a_redirect_leads_to_nothing_inside() -> None:
    asked: list[bytes] = []

    def leads(to: str) -> Talk:
        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            asked.append(b"")
            writer.write(f"HTTP/1.1 307 T\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n".encode())

        return talk

    async with talking(saying(HELLO)) as inside:
        for host in ("localhost", "127.0.0.1", "[::ffff:127.0.0.1]", "127.1"):
            async with talking(leads(f"http://{host}:{inside}/")) as port:
                with pytest.raises(ToolError, match="is not among|is no host"):
                    await got(port, follow_redirects=True)
        async with talking(leads("file:///etc/passwd")) as port:
            with pytest.raises(httpx2.UnsupportedProtocol):
                await got(port, follow_redirects=True)


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_no_proxy_of_the_environment_is_asked(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bytes] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(b"")

    async with talking(talk) as port, talking(saying(HELLO)) as server:
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{port}")
            monkeypatch.setenv(name.lower(), f"http://127.0.0.1:{port}")
        with pytest.raises((ToolError, httpx2.ConnectError)):
            async with http_client() as http:
                await http.get(f"{scheme}://localhost:{server}/")
        assert (await got(server)).text == "hello"
        reply = await client.asked("GET", f"http://127.0.0.1:{server}/", seconds=300, most=100)
        assert reply == (200, b"hello")
    assert asked == []


def test_entries_that_are_no_hosts_are_named() -> None:
    for wrong in ("example.org", ["http://example.org"], ["a b"], ["example.org\n"]):
        with pytest.raises(ValueError, match="is no host|is no list of hosts"):
            http_client(allow=wrong)


# Answers.

SERVERS: dict[str, tuple[Talk, str]] = {
    "answers before it": (endless(b"", b"HTTP/1.1 103 Early\r\nLink: <x>\r\n\r\n" * 99), "headers are too large"),
    "headers": (endless(OK, b"a: b\r\n" * 1000), "headers are too large"),
    "one header": (endless(OK, b"x" * 10_000), "headers are too large"),
    "a chunk's extension": (endless(CHUNKED + b"1;", b"x" * 10_000), "buffer too long"),
    "a chunk's size": (endless(CHUNKED, b"0" * 10_000), "buffer too long"),
    "trailers": (endless(CHUNKED + b"0\r\n", b"a: b\r\n" * 1000), "buffer too long"),
    "chunks": (endless(CHUNKED, b"1\r\nx\r\n" * 1000), "more than 1,000 pieces"),
    "a body": (endless(OK + b"\r\n", bytes(65536)), "more than 2 MiB"),
    "blocks of nothing": (
        endless(OK + b"Content-Encoding: deflate\r\n\r\n", b"\x00\x00\x00\xff\xff" * 1000), "more than 2 MiB",
    ),
    "a name in gzip": (
        endless(OK + b"Content-Encoding: gzip\r\n\r\n\x1f\x8b\x08\x08\0\0\0\0\0\0", b"n" * 9999), "more than 2 MiB",
    ),
    "zeros": (saying(answer(gzip.compress(bytes(64 * MIB)), "Content-Encoding: gzip")), "more than 2 MiB"),
    "lists": (saying(answer(gzip.compress(b"[" * (2 * MIB)), "Content-Encoding: gzip")), "more than 500,000 values"),
    "packed twice": (saying(answer(gzip.compress(b""), "Content-Encoding: gzip, gzip")), "was not asked for"),
    "packed and cut": (saying(answer(gzip.compress(b"tea")[:-9], "Content-Encoding: gzip")), "breaks off"),
    "another protocol": (saying(b"HTTP/1.1 101 S\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"), "pending proposal"),
    "half a head": (saying(OK), "ends before its headers do"),
    "two lengths": (saying(OK + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabc"), "conflicting"),
    "a length below 0": (saying(OK + b"Content-Length: -3\r\n\r\nabc"), "bad Content-Length"),
    "a part": (saying(OK + b"Content-Length: 9\r\n\r\nabc"), "without sending complete message"),
}  # fmt: skip


@pytest.mark.parametrize("kind", SERVERS)
async def test_what_never_ends_or_is_none_costs_little(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "PIECES", 1000)
    talk, said = SERVERS[kind]
    async with talking(talk) as port:
        tracemalloc.start()
        try:
            with pytest.raises(httpx2.RequestError, match=said):
                await got(port, max_bytes=2 * MIB)
            most = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert most < 20 * MIB, most / MIB


@pytest.mark.parametrize("head", [b"", OK, OK + b"\r\n", CHUNKED + b"ffff\r\n"])
async def test_a_drip_ends_at_the_time(head: bytes) -> None:
    async with talking(endless(head, b"x", 0.05)) as port:
        with pytest.raises(httpx2.ReadTimeout, match=r"no complete answer within 0\.4 s"):
            await got(port, timeout_s=0.4)


async def test_time_is_that_of_the_server() -> None:
    """Each part comes in time, and so does the whole; a reader that takes its time is not the server's fault."""
    async with talking(saying(answer(b"x" * 100_000))) as port:
        one = Transport(seconds=0.4)
        async with httpx2.AsyncClient(transport=one) as http, http.stream("GET", f"http://127.0.0.1:{port}/") as said:
            read = 0
            async for part in said.aiter_raw():
                read += len(part)
                await asyncio.sleep(0.1)
    assert read == 100_000


async def test_a_name_that_is_not_resolved_ends_at_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(call: Any) -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr(transport, "in_thread", never)
    async with http_client(timeout_s=0.2) as http:
        with pytest.raises(httpx2.TimeoutException, match=r"within 0\.2 s"):
            await http.get("http://slow.example/")


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"HTTP/1.0 200 OK\r\n\r\nhello", "hello"),
        (b"HTTP/1.1 200 OK\nContent-Length: 5\n\nhello", "hello"),
        (b"HTTP/1.1 200\r\nContent-Length: 5\r\n\r\nhello", "hello"),
        (answer(gzip.compress(b"hello"), "Content-Encoding: gzip"), "hello"),
        (answer(b"hello", "Content-Encoding: identity"), "hello"),
        (CHUNKED + b"5;ext=1\r\nhello\r\n0\r\na: b\r\n\r\n", "hello"),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\n" + HELLO, "hello"),
        (answer("Käse".encode(), "Content-Type: text/plain; charset=utf-8"), "Käse"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", ""),
        (answer(b"", "Content-Encoding: gzip"), ""),
    ],
)  # fmt: skip
async def test_proper_answers_are_read(raw: bytes, text: str) -> None:
    async with talking(saying(raw)) as port:
        said = await got(port)
    assert said.text == text
    assert "Content-Encoding" not in said.headers


async def test_only_what_can_be_unpacked_is_asked_for() -> None:
    heads: list[bytes] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HELLO)

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        await talk(reader, writer)
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    assert (await got(port, headers={"Accept-Encoding": "br, zstd"})).text == "hello"
    server.close()
    assert b"accept-encoding: gzip, deflate\r\n" in heads[0].lower()


async def test_events_may_go_on_if_their_reader_bounds_them() -> None:
    events = OK + b"Content-Type: text/event-stream\r\n\r\n" + b"data: x\n\n" * 100_000
    for settings, more in (({"events": False}, True), ({}, False)):
        one = Transport(bounds=Bounds(most=1000), **settings)
        async with talking(saying(events)) as port, httpx2.AsyncClient(transport=one, timeout=300) as http:
            if more:
                assert len((await http.get(f"http://127.0.0.1:{port}/")).content) == 900_000
            else:
                with pytest.raises(Unreadable, match=r"more than 0\.001 MB"):
                    await http.get(f"http://127.0.0.1:{port}/")


async def test_what_is_cancelled_takes_no_connection_away() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    one = Transport(connections=2)
    async with talking(silent) as mute, talking(saying(HELLO)) as port, httpx2.AsyncClient(transport=one) as http:
        for _ in range(3):
            waiting = [asyncio.create_task(http.get(f"http://127.0.0.1:{mute}/")) for _ in range(4)]
            await asyncio.sleep(0.05)
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
        assert (await http.get(f"http://127.0.0.1:{port}/", timeout=300)).text == "hello"


async def test_what_is_left_unread_takes_no_connection_away() -> None:
    one = Transport(connections=1)
    async with (
        talking(endless(OK + b"\r\n", bytes(1000), 0.01)) as port,
        talking(saying(HELLO)) as other,
        httpx2.AsyncClient(transport=one, timeout=300) as http,
    ):
        for _ in range(3):
            async with http.stream("GET", f"http://127.0.0.1:{port}/") as said:
                assert said.status_code == 200
        for _ in range(3):
            with pytest.raises(httpx2.UnsupportedProtocol):
                await http.get("http://a:0/")
            with pytest.raises(httpx2.ConnectError):
                await http.get("http://127.0.0.1:9/")
        async with talking(saying(b"HTTP/1.1 101 S\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n")) as third:
            headers = {"Connection": "upgrade", "Upgrade": "x"}
            for _ in range(3):
                with pytest.raises(httpx2.RemoteProtocolError, match="another protocol"):
                    await http.get(f"http://127.0.0.1:{third}/", headers=headers)
        assert (await http.get(f"http://127.0.0.1:{other}/")).text == "hello"


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_connection_with_packed_answers_is_used_again(chunked: bool) -> None:
    body, opened = gzip.compress(b"hello"), list[int]()
    head = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % len(body)
    sent = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body) if chunked else body

    async def keeps(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened.append(0)
        while True:
            writer.write(OK + head + b"\r\nContent-Encoding: gzip\r\n\r\n" + sent)
            await reader.readuntil(b"\r\n\r\n")

    async with talking(keeps) as port, httpx2.AsyncClient(transport=Transport(), timeout=300) as http:
        for _ in range(3):
            assert (await http.get(f"http://127.0.0.1:{port}/")).text == "hello"
    assert opened == [0]


async def test_idle_connections_are_few_and_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[int] = []

    async def keeps(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened.append(0)
        while True:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")
            await reader.readuntil(b"\r\n\r\n")

    async def leaves(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened.append(0)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")

    monkeypatch.setattr(transport, "IDLE_S", 300.0)
    one = Transport(connections=3)
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(httpx2.AsyncClient(transport=one, timeout=300))
        ports = [await stack.enter_async_context(talking(keeps)) for _ in range(6)]
        for port in [*ports, ports[-1], ports[-1]]:
            assert (await http.get(f"http://127.0.0.1:{port}/")).text == "hi"
        assert len(opened) == 6, "a server that is asked again is asked on the same connection"
        assert len(one._pool._idle) <= 4
        left = await stack.enter_async_context(talking(leaves))
        for _ in range(3):
            assert (await http.get(f"http://127.0.0.1:{left}/")).text == "hi"
            await until_async(lambda: next(reversed(one._pool._idle)).has_expired())
        assert len(opened) == 9, "what the server has closed is not used"
    assert one._pool._idle == {}
