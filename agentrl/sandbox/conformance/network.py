"""Checks of the network: egress only on request of the spec."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import threading
from contextlib import ExitStack, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from agentrl.sandbox.conformance.arena import Arena, expect
from agentrl.sandbox.conformance.check import check

_PROBE = """
import json, socket, sys
found = []
def attempt(what, run):
    try:
        run()
    except Exception:
        return
    found.append(what)
def tcp(address):
    socket.create_connection(address, timeout=1.5).close()
def udp(address, text=b"?"):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(1); s.sendto(text, address); s.recv(100)
def unix(path):
    s = socket.socket(socket.AF_UNIX); s.settimeout(1); s.connect(path)
asked = json.loads(sys.argv[1])
for kind, address in asked:
    run = {"tcp": tcp, "udp": udp, "unix": unix, "dns": lambda name: socket.getaddrinfo(name, 80)}[kind]
    where = tuple(address) if isinstance(address, list) else address
    attempt(f"{kind} {address}", lambda: run(where))
attempt("raw socket", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))
attempt("packet socket", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
print(json.dumps(found))
"""


def _host_services(stack: ExitStack, arena: Arena) -> list[tuple[str, Any]]:
    """Starts services of the host: TCP and UDP on all interfaces, unix sockets with and without a file."""
    tcp = stack.enter_context(socket.create_server(("0.0.0.0", 0)))
    udp = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    udp.bind(("0.0.0.0", 0))
    path = str(arena.host_folder() / "socket")
    named, abstract = (stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(2))
    named.bind(path)
    os.chmod(path, 0o777)
    name = f"\0agentrl-conformance-{os.getpid()}"
    abstract.bind(name)
    named.listen()
    abstract.listen()

    def echo() -> None:
        with suppress(OSError):
            while True:
                _, back = udp.recvfrom(100)
                udp.sendto(b"!", back)

    threading.Thread(target=echo, daemon=True).start()
    addresses = {"127.0.0.1", "169.254.169.254", "172.17.0.1", *_own_addresses()}
    ports = [("tcp", tcp.getsockname()[1]), ("udp", udp.getsockname()[1])]
    return [(kind, [address, port]) for address in sorted(addresses) for kind, port in ports] + [
        ("unix", path),
        ("unix", name),
    ]


def _own_addresses() -> set[str]:
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing
        return {str(probe.getsockname()[0])}
    return set()


_OUTSIDE: list[tuple[str, Any]] = [
    ("dns", "example.com"),
    ("dns", "host.docker.internal"),
    ("tcp", ["1.1.1.1", 443]),
    ("tcp", ["169.254.169.254", 80]),
    ("udp", ["1.1.1.1", 53]),
    ("unix", "/var/run/docker.sock"),
    ("unix", "/run/docker.sock"),
    ("unix", "/run/containerd/containerd.sock"),
    ("unix", "/run/systemd/private"),
    ("unix", "/run/dbus/system_bus_socket"),
]


@check()
async def no_network(arena: Arena) -> None:
    """DNS, TCP, UDP, link-local addresses, services of the host and docker sockets are unreachable by default."""
    sandbox = await arena.open(network="none")
    with ExitStack() as stack:
        asked = _OUTSIDE + _host_services(stack, arena)
        result = await sandbox.exec(["python3", "-c", _PROBE, json.dumps(asked)], timeout_s=300)
    expect(result.ok, f"the probe failed: {result.text[-300:]}")
    found = json.loads(result.stdout)
    expect(not found, f"reached: {', '.join(found)}")
    devices = (await sandbox.exec(["cat", "/proc/net/dev"])).text.splitlines()[2:]
    names = {line.split(":")[0].strip() for line in devices}
    expect("lo" in names and not names & {"eth0", "ens3", "docker0", "wlan0"}, f"network devices: {sorted(names)}")


_SERVE = """
import socketserver
class Echo(socketserver.StreamRequestHandler):
    def handle(self):
        self.wfile.write(self.rfile.read())
class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 64
with Server(("127.0.0.1", 61081), Echo) as server:
    print("up", flush=True)
    server.serve_forever()
"""


@check(lambda known: "" if known.endpoints else "services inside cannot be reached")
async def endpoints_reach_services(arena: Arena) -> None:
    """Services inside are reachable from this machine, exactly, by many clients, and only while the sandbox lives."""
    sandbox, other = await arena.open_many(2)
    server = await sandbox.spawn(["python3", "-c", _SERVE])
    expect(await server.read() == b"up\n", "a server cannot be started")

    async def echo(address: str, sent: bytes) -> bytes:
        host, port = address.rsplit(":", 1)
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(sent)
        answer = b""
        with suppress(OSError):
            await writer.drain()
            writer.write_eof()
            answer = await asyncio.wait_for(reader.read(), 30)
        writer.close()
        return answer

    address = await sandbox.endpoint(61081)
    expect(await sandbox.endpoint(61081) == address, "the same port has two endpoints")
    texts = [bytes([n]) * (1 << 17) for n in range(16)]
    expect(await asyncio.gather(*(echo(address, text) for text in texts)) == texts, "what came back differs")
    expect(await echo(await other.endpoint(61081), b"x") == b"", "a port where nothing listens answers")
    await sandbox.close()
    try:
        answer = await echo(address, b"x")
    except OSError:
        return
    expect(answer == b"", "the endpoint outlives its sandbox")


_HERE = "127.0.0.2"
"""Address of the host's loopback that programs inside do not confuse with their own."""


class _Hello(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"hello")

    def log_message(self, format: str, *args: object) -> None:
        """Discards the message."""


_FETCH = """
import json, sys, urllib.request
for url in json.loads(sys.argv[1]):
    try:
        print(urllib.request.urlopen(url, timeout=10).read().decode())
    except Exception as error:
        print("refused")
"""


@check(lambda known: "" if "allow" in known.networks else "the backend gives no network to some hosts only")
async def only_what_is_allowed(arena: Arena) -> None:
    """With an allow-list, programs reach the hosts on it through the proxy, and nothing else by any way."""
    with ExitStack() as stack:
        ports = []
        for _ in range(2):
            server = stack.enter_context(ThreadingHTTPServer((_HERE, 0), _Hello))
            threading.Thread(target=server.serve_forever, daemon=True).start()
            stack.callback(server.shutdown)
            ports.append(server.server_address[1])
        sandbox = await arena.open(network={"allow": (f"{_HERE}:{ports[0]}",)})
        urls = [f"http://{_HERE}:{port}/" for port in ports] + ["http://169.254.169.254/", "http://example.com/"]
        told = (await sandbox.exec(["python3", "-c", _FETCH, json.dumps(urls)], timeout_s=300)).text.split()
        expect(told == ["hello", "refused", "refused", "refused"], f"of {urls}: {told}")
        asked = _OUTSIDE + _host_services(stack, arena)
        found = json.loads((await sandbox.exec(["python3", "-c", _PROBE, json.dumps(asked)], timeout_s=300)).stdout)
        expect(not found, f"reached past the proxy: {', '.join(found)}")


_ASK = """
import json, os, socket, sys
from urllib.parse import urlsplit
proxy = urlsplit(os.environ["HTTP_PROXY"])
for head in json.loads(sys.argv[1]):
    with socket.create_connection((proxy.hostname, proxy.port), timeout=10) as link:
        link.sendall(head.encode())
        link.shutdown(socket.SHUT_WR)
        print(b"hello" in b"".join(iter(lambda: link.recv(65536), b"")))
"""


@check(lambda known: "" if "allow" in known.networks else "the backend gives no network to some hosts only")
async def requests_are_read_in_one_way(arena: Arena) -> None:
    """The proxy refuses requests that servers parse differently: bare line feeds, folded fields, control characters."""
    with ExitStack() as stack:
        server = stack.enter_context(ThreadingHTTPServer((_HERE, 0), _Hello))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        stack.callback(server.shutdown)
        address = f"{_HERE}:{server.server_address[1]}"
        sandbox = await arena.open(network={"allow": (address,)})
        line = f"GET http://{address}/ HTTP/1.1"
        loose = [
            f"{line}\nHost: other.example\nX: y\r\n\r\n",
            f"{line}\r\nX: y\nHost: other.example\r\n\r\n",
            f"{line}\r\nX: y\r\n Connection: keep-alive\r\n\r\n",
            f"{line}\r\nHost : other.example\r\n\r\n",
            f"{line}\r\nX: \0\r\n\r\n",
        ]
        asked = ["python3", "-c", _ASK, json.dumps([f"{line}\r\nX: y\r\n\r\n", *loose])]
        told = (await sandbox.exec(asked, timeout_s=300)).text.split()
        expect(told == ["True"] + ["False"] * len(loose), f"of one strict request and {len(loose)} loose ones: {told}")


@check()
async def own_loopback(arena: Arena) -> None:
    """Programs of one sandbox reach each other by loopback; the same port in two sandboxes is independent."""
    one, two = await arena.open_many(2)
    serve = "import socket,time; s=socket.create_server(('127.0.0.1', 61080)); print('up', flush=True); time.sleep(60)"
    connect = ["python3", "-c", "import socket; socket.create_connection(('127.0.0.1', 61080), timeout=2)"]
    server = await one.spawn(["python3", "-c", serve])
    expect(await server.read() == b"up\n", "a server cannot be started")
    expect((await one.exec(connect)).ok, "a program cannot reach its own sandbox's server")
    expect(not (await two.exec(connect)).ok, "a server of another sandbox was reached")
    second = await two.spawn(["python3", "-c", serve])
    expect(await second.read() == b"up\n", "two sandboxes cannot use the same port")
