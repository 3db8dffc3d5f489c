"""Ways out of a sandbox's network, to services of this machine that count who comes."""

from __future__ import annotations

import asyncio
import json
import os
import random
import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentrl.sandbox.registry import open_backend
from agentrl.types.errors import SandboxError
from agentrl.types.sandbox import Backend, NetworkAllow, SandboxSpec
from tests.attacks.cases import SANDBOXES, Broken, Case, Family
from tests.attacks.played import SPEC
from tests.sandbox.test_egress import NO_REQUESTS

_PROXY = ("127.0.0.1", 3128)
_PROBE = """
import json, socket, sys, threading
def tcp(where, said=b"", family=socket.AF_INET):
    with socket.socket(family) as link:
        link.settimeout(2)
        link.connect(tuple(where) if isinstance(where, list) else where)
        link.sendall(said)
        try:
            link.recv(1000)
        except OSError:
            pass
def udp(where, said=b"x", family=socket.AF_INET):
    socket.socket(family, socket.SOCK_DGRAM).sendto(said, tuple(where))
def one(kind, where, said):
    try:
        said = said.encode("latin-1", "replace")
        if kind == "unix": tcp(where, said, socket.AF_UNIX)
        elif kind == "tcp6": tcp(where, said, socket.AF_INET6)
        elif kind == "udp": udp(where)
        elif kind == "udp6": udp(where, family=socket.AF_INET6)
        else: tcp(where, said)
    except (OSError, ValueError, UnicodeError, OverflowError):
        pass
threads = [threading.Thread(target=one, args=way) for way in json.loads(sys.stdin.read())]
for thread in threads: thread.start()
for thread in threads: thread.join()
print("tried")
"""
_LOOPBACK = (
    "127.0.0.1", "localhost", "0", "0.0.0.0", "127.1", "127.0.1", "2130706433", "0x7f000001", "0x7f.0.0.1",
    "0177.0.0.1", "127.0.0.1.", "127.000.000.001",
    "[::1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[0:0:0:0:0:0:0:1]", "[64:ff9b::127.0.0.1]", "①②⑦.0.0.1",
    "127。0。0。1", "127.0.0.1%00", "LOCALHOST", "localhost.",
    "127.0.0.2", "127.255.255.254", "ip6-localhost", "%31%32%37.0.0.1", "127.0.0.1\t", " 127.0.0.1", "127.0.0.1,",
    "::1", "0.0.0.0.", "[::]", "[::1%lo]", "[fe80::1%lo]",
)  # fmt: skip
_HEADS = (
    "CONNECT {at} HTTP/1.1\r\n\r\n{inner}", "GET http://{at}/ HTTP/1.1\r\n\r\n",
    "GET http://{ok}/ HTTP/1.1\r\nHost: {at}\r\n\r\n",
    "GET http://{ok}@{at}/ HTTP/1.1\r\n\r\n", "GET http://{at}@{ok}/ HTTP/1.1\r\n\r\n",
    "GET http://{at}#@{ok}/ HTTP/1.1\r\n\r\n",
    "GET http://{ok}\\@{at}/ HTTP/1.1\r\n\r\n", "GET http://{at}\\.{ok}/ HTTP/1.1\r\n\r\n",
    "GET http:///{at}/ HTTP/1.1\r\n\r\n", "GET //{at}/ HTTP/1.1\r\n\r\n",
    "GET https://{at}/ HTTP/1.1\r\n\r\n", "GET ftp://{at}/ HTTP/1.1\r\n\r\n",
    "GET file:///etc/passwd HTTP/1.1\r\n\r\n", "GET / HTTP/1.1\r\nHost: {at}\r\n\r\n",
    "GET http://{ok}/ HTTP/1.1\r\nContent-Length: 5\r\n\r\nabcdeGET http://{at}/ HTTP/1.1\r\n\r\n",
    "CONNECT {ok} HTTP/1.1\r\nHost: {at}\r\n\r\n{inner}",
    "POST http://{ok}/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET http://{at}/ HTTP/1.1\r\n\r\n",
    "CONNECT {at}:{okport} HTTP/1.1\r\n\r\n{inner}",
    "GET http://{ok}:{port}/ HTTP/1.1\r\n\r\n", "CONNECT {at} HTTP/1.0\r\n\r\n", "connect {at} http/1.1\r\n\r\n",
    "CONNECT {at}\r\n\r\n", "CONNECT  {at} HTTP/1.1\r\n\r\n",
    "GET http://{ok}/ HTTP/1.1\r\nX: y\r\n\r\nCONNECT {at} HTTP/1.1\r\n\r\n",
    "GET http://{at}:80:{port}/ HTTP/1.1\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
)  # fmt: skip
_PORTS = ("{p}", "0{p}", "+{p}", " {p}", "{p} ", "{p}\t", "{big}", "-1", "{p}/", "{p}?", "{p}#", "%3{p}")


@dataclass
class Services:
    """Services of this machine.

    Attributes:
        open: a port that sandboxes with a list may reach.
        closed: ports, and the path of a socket, that no sandbox may reach.
        came: what reached those.
    """

    open: int
    closed: int
    udp: int
    path: str
    came: list[str] = field(default_factory=list)


@asynccontextmanager
async def services(folder: Path) -> AsyncIterator[Services]:
    """Runs them."""
    came: list[str] = []

    def serves(name: str, counts: bool) -> Any:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if counts:
                came.append(name)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")
            writer.close()

        return answer

    class Counts(asyncio.DatagramProtocol):
        def datagram_received(self, data: bytes, address: Any) -> None:
            came.append("udp")

    reached = await asyncio.start_server(serves("open", False), "127.0.0.1", 0)
    closed = await asyncio.start_server(serves("tcp", True), "127.0.0.1", 0)
    port = closed.sockets[0].getsockname()[1]
    servers = [reached, closed, await asyncio.start_server(serves("tcp", True), "127.0.0.2", port)]
    if socket.has_ipv6:
        servers.append(await asyncio.start_server(serves("tcp6", True), "::1", port))
    path = str(folder / "socket")
    servers.append(await asyncio.start_unix_server(serves("unix", True), path))
    os.chmod(path, 0o777)
    servers.append(await asyncio.start_unix_server(serves("abstract", True), f"\0attacks-{os.getpid()}"))
    datagrams, _ = await asyncio.get_running_loop().create_datagram_endpoint(Counts, ("127.0.0.1", 0))
    try:
        at = datagrams.get_extra_info("sockname")[1]
        yield Services(reached.sockets[0].getsockname()[1], port, at, path, came)
    finally:
        datagrams.close()
        for server in servers:
            server.close()


def ways(rng: random.Random, to: Services, count: int = 12) -> list[tuple[str, Any, str]]:
    """Kinds of connections, where to, and what is said."""
    found: list[tuple[str, Any, str]] = []
    for _ in range(count):
        host, kind = rng.choice(_LOOPBACK), rng.random()
        bare = host.strip("[]")
        if kind < 0.65:
            found.append(("tcp", _PROXY, head(rng, host, to)))
        elif kind < 0.8:
            found.append(rng.choice((("tcp", (bare, to.closed), "x"), ("tcp6", (bare, to.closed), "x"), ("udp", (bare,
            to.udp), ""),
                                     ("udp6", (bare, to.udp), ""))))  # fmt: skip
        else:
            names = (
                to.path,
                f"\0attacks-{os.getpid()}",
                f"/proc/1/root{to.path}",
                "/var/run/docker.sock",
                "/run/agentrl/egress",
            )
            found.append(("unix", rng.choice(names), "x"))
    return found


def head(rng: random.Random, host: str, to: Services) -> str:
    """What is said to the proxy."""
    port = rng.choice(_PORTS).format(p=to.closed, big=to.closed + 65536)
    said = rng.choice((*_HEADS, *_HEADS, *NO_REQUESTS))
    for word, text in (
        ("{at}", f"{host}:{port}"), ("{ok}", f"127.0.0.1:{to.open}"), ("{okport}", str(to.open)), ("{port}", port),
        ("{inner}", f"GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"),
    ):  # fmt: skip
        said = said.replace(word, text)
    return said


class Network(Family):
    """Each case tries a dozen ways, in a sandbox without a network or in one with a list."""

    name = "network"
    places = SANDBOXES
    batch = 4

    def listed(self) -> Sequence[str]:
        return [f"{kind}, loopback {n}" for n in range(len(_LOOPBACK)) for kind in ("none", "list")]

    def play(self, cases: Sequence[Case], folder: Path) -> Iterator[Broken]:
        """Tries them."""
        backend = open_backend(cases[0].place)
        backend.preflight(SandboxSpec())
        yield from asyncio.run(_tried(cases, folder, backend))


async def _tried(cases: Sequence[Case], folder: Path, backend: Backend) -> list[Broken]:
    found = []
    try:
        async with services(folder) as to:
            for case in cases:
                rng = case.random()
                listed = rng.random() < 0.7 if case.drawn else case.name.startswith("list")
                tried = ways(rng, to)
                if not case.drawn:
                    host = _LOOPBACK[int(case.name.rpartition(" ")[2])]
                    tried = [("tcp", _PROXY, head(random.Random(n), host, to)) for n in range(40)]
                    tried += [(kind, (host.strip("[]"), to.closed), "x") for kind in ("tcp", "tcp6")]
                    tried += [("udp", (host.strip("[]"), to.udp), ""), ("unix", to.path, "x")]
                network: Any = NetworkAllow(allow=(f"127.0.0.1:{to.open}",)) if listed else "none"
                async with await backend.create(SandboxSpec(**SPEC, network=network)) as sandbox:  # type: ignore[arg-type]
                    done = await sandbox.exec(["python3", "-c", _PROBE], stdin=json.dumps(tried).encode(), timeout_s=60)
                if done.text != "tried\n":
                    found.append(Broken((case.id,), f"the probe failed: {done.outcome} {done.text[-300:]}"))
                if to.came:
                    found.append(Broken((case.id,), f"it reached {to.came}"))
                    to.came.clear()
    except SandboxError as error:
        found.append(Broken(tuple(case.id for case in cases), f"{type(error).__name__}: {error}"))
    finally:
        await backend.close()
    return found
