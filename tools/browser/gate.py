"""SOCKS5 proxy of a context with an allowlist: connects only to the listed hosts.

All connections pass through it (pages, redirects, sub-requests, web sockets, downloads), so requests need not be
inspected one by one. RFC 1928, command CONNECT, without authentication.
"""

import asyncio
import contextlib
import ipaddress
import os
import socket
from collections.abc import Callable
from urllib.parse import urlsplit

from hosts import listed, public

CHUNK = 1 << 16
CONNECT_S = 10.0
REFUSED, UNREACHABLE = b"\x05\x02", b"\x05\x04"
REST = b"\x00\x01\x00\x00\x00\x00\x00\x00"


class Gate:
    """Proxy on a loopback port.

    Args:
        allow: `host`, `*.domain` or an address, each for ports 80 and 443, or with `:port`; `*`: every host and port.
            A name that resolves to a non-public address is refused unless that address is listed too, so that the owner
            of a name cannot open this network. `localhost` is the exception: nobody owns it.
        refused: callback with `host:port` of each refused connection, and the reason if it is listed.
        through: host and port of the HTTP proxy to other machines; None: direct connections.
    """

    def __init__(
        self, allow: list[str], refused: Callable[[str], None], through: tuple[str, int] | None = None
    ) -> None:
        self.allow, self.refused, self.through = allow, refused, through
        self.server: asyncio.Server | None = None
        self.tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> int:
        """Starts listening and returns the port."""
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0, limit=CHUNK)
        return int(self.server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        if self.server is not None:
            self.server.close()
        for task in list(self.tasks):
            task.cancel()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await self.connect(reader, writer)
        finally:
            self.tasks.discard(task)
            writer.close()

    async def connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _, methods = await reader.readexactly(2)
        await reader.readexactly(methods)
        writer.write(b"\x05\x00")
        _, command, _, kind = await reader.readexactly(4)
        host = await self.host(reader, kind)
        port = int.from_bytes(await reader.readexactly(2))
        if command != 1 or not listed(self.allow, host, port):
            self.refused(place(host, port))
            writer.write(REFUSED + REST)
            return
        try:
            async with asyncio.timeout(CONNECT_S):
                there, to_there = await reach(host, port, self.through, self.allow)
        except Denied as denied:
            self.refused(f"{place(host, port)}{denied}")
            writer.write(REFUSED + REST)
            return
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            writer.write(UNREACHABLE + REST)
            return
        writer.write(b"\x05\x00" + REST)
        try:
            await asyncio.gather(pipe(reader, to_there), pipe(there, writer))
        finally:
            to_there.close()

    async def host(self, reader: asyncio.StreamReader, kind: int) -> str:
        if kind == 3:
            return (await reader.readexactly((await reader.readexactly(1))[0])).decode("ascii", "replace").lower()
        return str(ipaddress.ip_address(await reader.readexactly(4 if kind == 1 else 16)))


def place(host: str, port: int) -> str:
    """Formats host and port; IPv6 addresses in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Denied(Exception):
    """The proxy of the sandbox refused a host, or none of its addresses may be reached; the text says why."""


def proxy() -> tuple[str, int] | None:
    """Returns the proxy in the environment, set by sandboxes with an allowlist; None if unset."""
    found = urlsplit(os.environ.get("HTTPS_PROXY") or "")
    return (found.hostname, found.port or 80) if found.hostname else None


async def reach(
    host: str, port: int, through: tuple[str, int] | None, allow: list[str]
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Opens a connection to a listed host; loopback addresses bypass the proxy, which checks all others.

    Raises:
        Denied: the proxy refused, or no address of the host may be reached.
        OSError: the connection failed.
    """
    if is_loopback(host):
        return await asyncio.open_connection(host, port)
    if through is None:
        return await connected(await addresses(host, port, allow), port)
    reader, writer = await asyncio.open_connection(*through)
    try:
        writer.write(f"CONNECT {place(host, port)} HTTP/1.1\r\nHost: {place(host, port)}\r\n\r\n".encode())
        status = (await reader.readuntil(b"\r\n\r\n")).split(b" ", 2)[1]
        if status == b"403":
            raise Denied
        if status != b"200":
            raise ConnectionError(f"the proxy answered {status.decode('ascii', 'replace')}")
    except BaseException:
        writer.close()
        raise
    return reader, writer


def is_loopback(host: str) -> bool:
    """Returns True for `localhost` and addresses of this machine itself. A name such as `127.example.org` is none."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


async def addresses(host: str, port: int, allow: list[str]) -> list[str]:
    """Resolves a host; returns its addresses that are public or listed.

    Raises:
        Denied: there is none.
        OSError: the host cannot be resolved.
    """
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    own = dict.fromkeys(str(each[4][0]) for each in found)
    fit = [address for address in own if public(address) or listed(allow, address, port)]
    if not fit:
        raise Denied(f" (at {', '.join(list(own)[:3])}: no public address, and not listed)")
    return fit


async def connected(addresses: list[str], port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Opens a connection to the first address that answers.

    Raises:
        OSError: none does; the error of the last one.
    """
    for address in addresses[:-1]:
        with contextlib.suppress(OSError):
            return await asyncio.open_connection(address, port)
    return await asyncio.open_connection(addresses[-1], port)


async def pipe(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    """Copies data until EOF and passes EOF on."""
    try:
        while data := await source.read(CHUNK):
            target.write(data)
            await target.drain()
        if target.can_write_eof():
            target.write_eof()
    except OSError:
        target.close()
