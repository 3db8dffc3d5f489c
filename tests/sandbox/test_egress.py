"""Egress: the proxy by itself on this machine, and from within a sandbox."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import resource
import runpy
import shutil
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from agentrl.sandbox.namespace.backend import NamespaceBackend
from agentrl.sandbox.toolbox.egress import Egress
from agentrl.types.paths import data_path
from agentrl.types.sandbox import Backend, NetworkAllow, SandboxSpec, SandboxStartFailed, SandboxUnavailable
from tests.waiting import until_async

pytestmark = pytest.mark.slow


@pytest.fixture
def egress() -> Iterator[Egress]:
    opened = Egress()
    yield opened
    opened.stop()


@pytest.fixture
async def web() -> AsyncIterator[int]:
    """A web server on loopback that answers with the request it got; its port."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(head) + head)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()


async def ask(path: str, request: str) -> str:
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(request.encode())
    answer = await reader.read()
    writer.close()
    return answer.decode()


async def test_what_is_listed_is_reached_as_a_proxy_should(egress: Egress, web: int, tmp_path: Path) -> None:
    path = f"{tmp_path}/e"
    await asyncio.to_thread(egress.open, path, (f"127.0.0.1:{web}",), "ep")
    head = (
        f"GET http://127.0.0.1:{web}/a?b HTTP/1.1\r\nHost: other.example\r\nProxy-Authorization: secret\r\nX: y\r\n\r\n"
    )
    answer = await ask(path, head)
    assert f"GET /a?b HTTP/1.1\r\nHost: 127.0.0.1:{web}\r\nConnection: close\r\nX: y\r\n" in answer
    assert "secret" not in answer
    tunnel = f"CONNECT 127.0.0.1:{web} HTTP/1.1\r\n\r\nGET /in HTTP/1.1\r\nHost: x\r\n\r\n"
    assert "200 Connection established\r\n\r\nHTTP/1.1 200 OK" in await ask(path, tunnel)


@pytest.mark.parametrize(
    ("allow", "target", "status"),
    [
        ("example.org", "example.com:443", "403"),
        ("example.org", "example.org.evil.test:443", "403"),
        ("*.example.org", "example.org:443", "403"),
        ("*.example.org", "notexample.org:443", "403"),
        ("example.org", "example.org:22", "403"),
        ("localhost", "localhost:80", "403"),  # resolves to what is not public
        ("localhost", "127.0.0.1:80", "403"),
        ("example.org", "169.254.169.254:80", "403"),
        ("no-such-host.invalid", "no-such-host.invalid:80", "502"),
        ("127.0.0.1:9", "127.0.0.1:9", "502"),
    ],
)
async def test_what_is_not_listed_is_refused(
    egress: Egress, tmp_path: Path, allow: str, target: str, status: str
) -> None:
    path = f"{tmp_path}/e"
    await asyncio.to_thread(egress.open, path, (allow,), "ep")
    assert (await ask(path, f"CONNECT {target} HTTP/1.1\r\n\r\n")).startswith(f"HTTP/1.1 {status} ")
    assert (await ask(path, f"GET http://{target}/ HTTP/1.1\r\n\r\n")).startswith(f"HTTP/1.1 {status} ")


NO_REQUESTS = [
    "nonsense\r\n\r\n",
    "GET /path HTTP/1.1\r\n\r\n",
    "CONNECT x:y HTTP/1.1\r\n\r\n",
    "CONNECT \x1bC:443 HTTP/1.1\r\n\r\n",
    "CONNECT \u00e9:443 HTTP/1.1\r\n\r\n",
    "GET http://example.org/ HTTP/1.1\nHost: forged\nX: y\r\n\r\n",
    "GET http://example.org/ HTTP/1.1\nHost:\tforged\r\n\r\n",
    "GET http://example.org/ HTTP/1.1 HTTP/1.1\r\n\r\n",
    "GET http://example.org/ HTTP/2\r\n\r\n",
    "G(T http://example.org/ HTTP/1.1\r\n\r\n",
    "GET http://example.org/ HTTP/1.1\r\nX: y\r\n folded\r\n\r\n",
    "GET http://example.org/ HTTP/1.1\r\n\tfolded\r\n\r\n",
    "GET http://example.org/ HTTP/1.1\r\nX: a\nHost: forged\r\n\r\n",
    "GET http://example.org/ HTTP/1.1\r\nX: a\rHost: forged\r\n\r\n",
    "GET http://example.org/ HTTP/1.1\r\nX: \0\r\n\r\n",
    "GET http://example.org/ HTTP/1.1\r\nHost : forged\r\n\r\n",
    "GET http://example.org/ HTTP/1.1\r\nno field\r\n\r\n",
]
"""Heads that servers could read in different ways, or that are none."""


@pytest.mark.parametrize("request_", NO_REQUESTS)
async def test_what_is_no_request_is_refused(egress: Egress, tmp_path: Path, request_: str) -> None:
    path = f"{tmp_path}/e"
    await asyncio.to_thread(egress.open, path, ("example.org",), "ep")
    assert (await ask(path, request_)).startswith("HTTP/1.1 400 ")


async def test_refusals_are_told_once(egress: Egress, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = f"{tmp_path}/e"
    await asyncio.to_thread(egress.open, path, ("example.org",), "episode-5")
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            await ask(path, "CONNECT evil.test:443 HTTP/1.1\r\n\r\n")
        await asyncio.to_thread(egress.open, f"{tmp_path}/f", ("example.org",), "")  # all before it is told by now
    assert [record.message for record in caplog.records] == [
        "egress of episode-5 refused to evil.test:443: not in the sandbox's list of allowed hosts"
    ]


async def test_a_refusal_cannot_forge_the_log(egress: Egress, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = f"{tmp_path}/e"
    await asyncio.to_thread(egress.open, path, ("example.org",), "ep")
    with caplog.at_level(logging.WARNING):
        assert " 403 " in await ask(path, f"CONNECT \\x1b'{'x' * 300}:443 HTTP/1.1\r\n\r\n")
        await asyncio.to_thread(egress.open, f"{tmp_path}/f", ("example.org",), "")
    (said,) = [record.message for record in caplog.records]
    assert said.startswith("egress of ep refused to \\\\x1b'x")
    assert said.isascii()
    assert said.isprintable()
    assert 200 < said.count("x") < 260


SLOW = """
import fcntl
real = socket.getaddrinfo
def getaddrinfo(host, *words, **settings):
    with open(f"{folder}/asked", "a") as file:
        file.write(host + "\\n")
    if host.endswith(".slow.test"):
        with open(f"{folder}/held") as held:
            fcntl.flock(held, fcntl.LOCK_SH)  # once the test lets go of it
        raise OSError("no such host")
    return real("127.0.0.1" if host == "quick.test" else host, *words, **settings)
socket.getaddrinfo = getaddrinfo
if __name__ == "__main__":
"""


async def test_names_that_are_slow_to_resolve_hold_up_no_other_sandbox(
    egress: Egress, web: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, asked = tmp_path / "tools" / "egress" / "proxy.py", tmp_path / "asked"
    program.parent.mkdir(parents=True)
    text = data_path("tools", "egress", "proxy.py").read_text()
    shutil.copytree(data_path("tools", "shared"), tmp_path / "tools" / "shared")
    program.write_text(text.replace('if __name__ == "__main__":\n', f"folder = {str(tmp_path)!r}\n{SLOW}"))
    monkeypatch.setattr("agentrl.sandbox.toolbox.egress.data_path", lambda *parts: tmp_path.joinpath(*parts))
    one, two = f"{tmp_path}/1", f"{tmp_path}/2"
    await asyncio.to_thread(egress.open, one, ("*.slow.test", f"127.0.0.1:{web}"), "one")
    await asyncio.to_thread(egress.open, two, (f"127.0.0.1:{web}", f"quick.test:{web}"), "two")
    held = open(tmp_path / "held", "w")  # noqa: SIM115 - its lock is let go of below
    fcntl.flock(held, fcntl.LOCK_EX)
    slow = [asyncio.ensure_future(ask(one, f"CONNECT {n}.slow.test:80 HTTP/1.1\r\n\r\n")) for n in range(40)]
    await until_async(lambda: asked.exists() and len(asked.read_text().splitlines()) == 4)
    for path, host in ((two, "127.0.0.1"), (two, "quick.test"), (two, "quick.test"), (one, "127.0.0.1")):
        assert " 200 " in await ask(path, f"GET http://{host}:{web}/ HTTP/1.1\r\n\r\n")
    assert not any(each.done() for each in slow)
    told = asked.read_text().splitlines()
    assert len(told) == 5  # four at a time of the one, and the other's, whose answer was remembered; no literal
    assert told[-1] == "quick.test"
    held.close()
    for answer in await asyncio.gather(*slow):
        assert answer.startswith("HTTP/1.1 502 ")
        assert "no such host" in answer


@pytest.mark.parametrize(
    ("addresses", "public"),
    [
        ("1.1.1.1 93.184.215.14 2606:4700::1111 2a00::1 ::ffff:1.1.1.1 64:ff9b::1.1.1.1 3ffe::1", True),
        ("0.0.0.0 10.1.2.3 100.64.0.1 127.0.0.1 169.254.169.254 172.31.0.1 192.0.0.8 192.168.1.1 198.19.0.1", False),
        ("224.0.0.1 240.0.0.1 255.255.255.255 192.88.99.1 203.0.113.7", False),
        (":: ::1 ::10.0.0.1 ::1.1.1.1 fe80::1 fe80::1%eth0 fec0::1 fc00::1 fd12::1 ff02::1 100::1 5f00::1", False),
        ("2001:db8::1 2002:a00:1::1 2001::1 3fff::1 64:ff9b:1::1 ::ffff:10.0.0.1 ::ffff:0:1.1.1.1", False),
        ("64:ff9b::10.0.0.1 64:ff9b::169.254.169.254 64:ff9b::127.0.0.1 ::ffff:127.0.0.1", False),
    ],
)
def test_which_addresses_are_public(addresses: str, public: bool) -> None:
    loaded = runpy.run_path(str(data_path("tools", "shared", "hosts.py")))
    told = {address: loaded["public"](address) for address in addresses.split()}
    assert told == dict.fromkeys(addresses.split(), public)


async def test_a_head_without_an_end_is_hung_up_on_in_silence(
    egress: Egress, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = f"{tmp_path}/e"
    await asyncio.to_thread(egress.open, path, ("example.org",), "ep")
    for length in (65_000, 70_000, 200_000):
        reader, writer = await asyncio.open_unix_connection(path)
        with suppress(ConnectionError):
            writer.write(b"GET http://example.org/ HTTP/1.1\r\nX: " + b"x" * length)
            writer.write_eof()
            assert await reader.read() == b""
        writer.close()
    assert (await ask(path, "CONNECT evil.test:443 HTTP/1.1\r\n\r\n")).startswith("HTTP/1.1 403 ")
    egress.stop()
    told = capfd.readouterr().err.splitlines()  # an earlier test may have had the log shown
    assert [line for line in told if "egress of ep refused to evil.test:443" not in line] == []


async def test_the_proxy_may_open_as_many_files_as_it_can(egress: Egress, tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 200), hard))
    try:
        await asyncio.to_thread(egress.open, f"{tmp_path}/e", ("example.org",), "ep")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert egress._process is not None
    assert resource.prlimit(egress._process.pid, resource.RLIMIT_NOFILE) == (hard, hard)


async def test_a_temp_folder_too_deep_for_the_proxys_socket(
    public_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = public_folder / ("d" * (90 - len(str(public_folder))))
    deep.mkdir()
    deep.chmod(0o755)
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    backend = NamespaceBackend()
    try:
        backend.preflight(SandboxSpec())
        with pytest.raises(SandboxUnavailable, match="too long") as raised:
            backend.preflight(SandboxSpec(network=NetworkAllow(allow=("example.org",))))
        assert "TMPDIR" in str(raised.value.remedy)
    finally:
        await backend.close()


async def test_a_place_where_it_cannot_listen(egress: Egress, tmp_path: Path) -> None:
    with pytest.raises(SandboxStartFailed, match="cannot listen"):
        await asyncio.to_thread(egress.open, f"{tmp_path}/no/e", ("example.org",), "")


@pytest.fixture
async def relay(tmp_path: Path) -> AsyncIterator[int]:
    """The relay, on this machine, to a server that sends back what it gets, once that has ended; its port."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.read())
        await writer.drain()
        writer.close()

    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    server = await asyncio.start_unix_server(echo, f"{tmp_path}/e")
    program = [sys.executable, "-I", "-S", str(data_path("tools", "egress", "relay.py")), str(port), f"{tmp_path}/e"]
    process = await asyncio.create_subprocess_exec(*program, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    assert await process.stdout.readline() == b"ready\n"
    yield port
    assert process.returncode is None, "the relay died"
    process.kill()
    await process.wait()
    server.close()


async def through(port: int, data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    writer.write_eof()
    answer = await reader.read()
    writer.close()
    return answer


async def test_the_relay_is_exact_for_many_and_survives_the_rude(relay: int, tmp_path: Path) -> None:
    texts = [bytes([n]) * (1 << 20) for n in range(24)] + [b"", b"x"]
    rude = [await asyncio.open_connection("127.0.0.1", relay) for _ in range(20)]
    for n, (_, writer) in enumerate(rude):
        writer.write(b"y" * (100_000 * n))
        if n % 2:
            writer.transport.abort()
    assert await asyncio.gather(*(through(relay, text) for text in texts)) == texts
    for _, writer in rude:
        writer.close()
    (tmp_path / "e").unlink()
    assert await through(relay, b"") == b""  # hung up on: there is nothing behind it


FETCH = """
import sys, urllib.error, urllib.request
try:
    print(urllib.request.urlopen(sys.argv[1], timeout=200).status)
except urllib.error.HTTPError as error:
    print(error.code)
"""
DIRECT = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 3)"


async def test_a_sandbox_reaches_what_is_listed_and_nothing_else(either: Backend, web: int) -> None:
    spec = SandboxSpec(network=NetworkAllow(allow=(f"127.0.0.1:{web}",)))
    async with await either.create(spec, label="ep") as sandbox:
        env = {
            "NO_PROXY": "",
            "no_proxy": "",
        }  # the server of this test is on loopback, which is not proxied by default
        for url, said in ((f"http://127.0.0.1:{web}/", "200\n"), ("http://example.org/", "403\n")):
            assert (await sandbox.exec(["python3", "-c", FETCH, url], env=env)).text == said
        assert not (await sandbox.exec(["python3", "-c", DIRECT, "127.0.0.1", str(web)])).ok
        assert not (await sandbox.exec(["python3", "-c", DIRECT, "1.1.1.1", "53"])).ok
        devices = (await sandbox.exec("tail -n +3 /proc/net/dev")).text.splitlines()
        assert [line.split(":")[0].strip() for line in devices] == ["lo"]
    async with await either.create(SandboxSpec()) as neighbour:
        assert not (await neighbour.exec(["python3", "-c", FETCH, f"http://127.0.0.1:{web}/"])).ok
