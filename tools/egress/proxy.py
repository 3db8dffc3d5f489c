"""Egress proxy: an HTTP proxy (CONNECT and plain) that lets sandboxes reach only listed hosts.

Runs on the host and listens on one unix socket per sandbox. Standard library, and `../shared/hosts.py`.

Stdin, one JSON object per line: `{"open": PATH, "allow": [HOST, ...]}` and `{"close": PATH}`; exits when stdin closes.
Stdout: `{"opened": PATH}`, `{"failed": PATH, "why": TEXT}`, and `{"refused": PATH, "target": "host:port",
"why": TEXT}`, the last once per sandbox and target.

An entry is `host`, `*.domain` (its subdomains) or an IPv4 address, with `:port`, else for ports 80 and 443. A name
that resolves to a non-public address (loopback, link-local, private, mapped to an IPv4 one by a translator) is refused
unless that address is listed too, so that the owner of a name cannot open our network. The content of CONNECT tunnels
is not inspected.

Slow lookups block only their own sandbox: each has its own few lookup slots.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import os
import re
import resource
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn, TypeVar
from urllib.parse import urlsplit

sys.path.append(str(Path(__file__).resolve().parents[1] / "shared"))

from hosts import listed, public

T = TypeVar("T")
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]

CHUNK = 1 << 16
HEAD_S, CONNECT_S, IDLE_S = 30, 20, 300
MOST_CONNECTIONS = 128  # of one sandbox
MOST_REPORTS = 1000  # refusals reported per sandbox
MOST_TOLD = 255  # characters of a host name, the maximum of DNS
MOST_LOOKUPS = 4  # concurrent lookups of one sandbox; more wait
MOST_ADDRESSES = 16  # of a name
MOST_KNOWN = 4096  # names in the DNS cache, for
KNOWN_S = 30
REQUEST = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+ [!-~]+ HTTP/1\.[01]")
FIELD = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t -~\x80-\xff]*")
DROPPED = ("connection", "proxy-", "keep-alive", "host", "upgrade", "te:")


class Refused(Exception):
    """A request is refused; arguments: status and text of the response."""


class Outlet:
    """Allowlist and connections of one sandbox."""

    def __init__(self, path: str, allow: list[str]) -> None:
        self.path, self.entries, self.connections = path, allow, 0
        self.reported: set[str] = set()
        self.lookups = asyncio.Semaphore(MOST_LOOKUPS)

    def listed(self, host: str, port: int) -> bool:
        return listed(self.entries, host, port)

    def refuse(self, host: str, port: int, why: str) -> NoReturn:
        target = f"{ascii(host[:MOST_TOLD])[1:-1]}:{port}"  # untrusted input that a terminal may show
        if target not in self.reported and len(self.reported) < MOST_REPORTS:
            self.reported.add(target)
            report(refused=self.path, target=target, why=why)
        raise Refused("403 Forbidden", f"agentrl: {target}: {why}")

    async def connect(self, host: str, port: int) -> Streams:
        """Connects to an allowed host at an allowed address; returns the streams."""
        host = host.lower().rstrip(".")
        if not self.listed(host, port):
            self.refuse(host, port, "not in the sandbox's list of allowed hosts")
        addresses = await self.addresses(host)
        fit = [each for each in addresses if public(each) or self.listed(each, port)]
        if not fit:
            self.refuse(host, port, f"it resolves to {addresses[0]}, which is not a public address and not listed")
        problem: OSError | None = None
        for address in fit:
            try:
                return await asyncio.wait_for(asyncio.open_connection(address, port), CONNECT_S)
            except OSError as error:
                problem = error
        raise Refused("502 Bad Gateway", f"agentrl: {host}:{port}: {problem or 'no answer'}")

    async def addresses(self, host: str) -> list[str]:
        with suppress(ValueError):
            return [str(ipaddress.ip_address(host))]
        found, until = known.get(host, ([], 0.0))
        if time.monotonic() < until:
            return found
        try:
            async with self.lookups:
                answer = await in_a_thread(lambda: socket.getaddrinfo(host, None, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError, RuntimeError) as error:  # RuntimeError: no more threads
            raise Refused("502 Bad Gateway", f"agentrl: {host}: {error}") from None
        found = list(dict.fromkeys(str(each[4][0]) for each in answer))[:MOST_ADDRESSES]
        while len(known) >= MOST_KNOWN:
            del known[next(iter(known))]
        known[host] = found, time.monotonic() + KNOWN_S
        return found

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        up: asyncio.StreamWriter | None = None
        try:
            if self.connections > MOST_CONNECTIONS:
                raise Refused("503 Service Unavailable", "agentrl: too many connections at the same time")
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), HEAD_S)
            host, port, forward = parse(head)
            up_reader, up = await self.connect(host, port)
            if forward is None:
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            else:
                up.write(forward)
            await asyncio.gather(pump(reader, up), pump(up_reader, writer))
        except Refused as refusal:
            status, text = refusal.args
            body = text.encode("utf-8", "replace") + b"\n"
            answer = f"HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n"
            writer.write(answer.encode() + b"Connection: close\r\n\r\n" + body)
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError):
            pass
        finally:
            self.connections -= 1
            for each in (up, writer):
                if each is not None:
                    each.close()


known: dict[str, tuple[list[str], float]] = {}  # addresses and expiry by host, for all sandboxes


async def in_a_thread(function: Callable[[], T]) -> T:
    """Runs a blocking function and returns or raises its result.

    Uses a new daemon thread instead of a small pool, so that it blocks neither other lookups nor the exit.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(set_it: Callable[[Any], None], value: object) -> None:
        if not future.done():
            set_it(value)

    def work() -> None:
        done: tuple[Callable[[Any], None], object]
        try:
            done = future.set_result, function()
        except Exception as error:
            done = future.set_exception, error
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, *done)

    threading.Thread(target=work, daemon=True).start()
    return await future


def parse(head: bytes) -> tuple[str, int, bytes | None]:
    """Parses a request into (host, port, bytes to forward); None to forward for CONNECT.

    One request per connection: the end of the response closes it, so that a second request cannot go to another host.
    Ambiguous syntax (bare line feeds, folded fields) is refused.
    """
    first, *fields = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    if not REQUEST.fullmatch(first) or not all(map(FIELD.fullmatch, fields)):
        raise Refused("400 Bad Request", "agentrl: not an HTTP request")
    method, target, version = first.decode("ascii").split(" ")
    try:
        url = urlsplit("//" + target if method == "CONNECT" else target)
        host, port = url.hostname, url.port
    except ValueError:
        host = port = None
    if host and port and method == "CONNECT":
        return host, port, None
    if not host or method == "CONNECT" or url.scheme != "http":
        raise Refused("400 Bad Request", "agentrl: this is a proxy: http://host/path, or CONNECT host:port")
    lines = [field.decode("latin-1") for field in fields]
    kept = [line for line in lines if not line.lower().startswith(DROPPED)]
    path = (url.path or "/") + (f"?{url.query}" if url.query else "")
    authority = host if port is None else f"{host}:{port}"
    request = [f"{method} {path} {version}", f"Host: {authority}", "Connection: close", *kept, "", ""]
    return host, port or 80, "\r\n".join(request).encode("latin-1")


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        data = await asyncio.wait_for(reader.read(CHUNK), IDLE_S)
        if not data:
            break
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


def report(**fields: str) -> None:
    print(json.dumps(fields), flush=True)


async def main() -> None:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    loop = asyncio.get_running_loop()
    commands = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    servers: dict[str, asyncio.Server] = {}
    while True:
        line = await commands.readline()
        if not line:
            return
        command = json.loads(line)
        if "open" in command:
            path = command["open"]
            try:
                servers[path] = await asyncio.start_unix_server(Outlet(path, command["allow"]).serve, path)
                os.chmod(path, 0o666)  # the sandbox has another user; the folder restricts access
            except OSError as error:
                report(failed=path, why=str(error))
                continue
            report(opened=path)
        elif command["close"] in servers:
            servers.pop(command["close"]).close()


if __name__ == "__main__":
    asyncio.run(main())
