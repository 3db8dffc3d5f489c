"""`network: public`, with an engine in a network of its own: what sandboxes reach, and that they do not meet."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from agentrl.types.sandbox import SandboxSpec, SandboxStartFailed
from tests.sandbox import dockerd
from tests.waiting import running_program

if TYPE_CHECKING:
    from agentrl.sandbox.docker.backend import DockerBackend

pytestmark = pytest.mark.slow

PUBLIC = SandboxSpec(network="public")
SERVE = """
import socket
server = socket.create_server(("0.0.0.0", 8000))
print("up", flush=True)
while True:
    server.accept()[0].sendall(b"hello")
"""
TRY = """
import socket, sys
try:
    print(socket.create_connection((sys.argv[1], 8000), float(sys.argv[2])).recv(9).decode())
except OSError as error:
    print(type(error).__name__)
"""
OWN = """
import socket
link = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
link.connect(("192.0.2.1", 9))
print(link.getsockname()[0])
"""


@pytest.fixture(scope="module")
def engine_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Of an engine in a network namespace of its own."""
    pytest.importorskip("docker", reason="the package docker is missing: pip install 'agentrl-framework[docker]'")
    if why := dockerd.why_not():
        pytest.skip(why)
    folder = tmp_path_factory.mktemp("public", numbered=True)
    dockerd.start(folder, f"unix://{folder}/sock", own_network=True)
    dockerd.import_images(f"unix://{folder}/sock")
    yield folder
    dockerd.stop(folder)


@pytest.fixture
async def public(engine_folder: Path) -> AsyncIterator[DockerBackend]:
    from agentrl.sandbox.docker.backend import DockerBackend

    backend = DockerBackend(f"unix://{engine_folder}/sock")
    backend.preflight(PUBLIC)
    yield backend
    await backend.close()


def in_its_network(folder: Path, *argv: str) -> list[str]:
    return ["nsenter", f"--net=/proc/{(folder / 'pid').read_text()}/ns/net", *argv]


async def test_sandboxes_reach_what_the_machine_reaches_and_not_each_other(
    public: DockerBackend, engine_folder: Path
) -> None:
    one, other = await asyncio.gather(public.create(PUBLIC), public.create(PUBLIC))
    server = await one.spawn(["python3", "-c", SERVE])
    assert await server.read() == b"up\n"
    address = (await one.exec(["python3", "-c", OWN])).text.strip()
    assert (await one.exec(["python3", "-c", TRY, address, "60"])).text == "hello\n"
    assert (await other.exec(["python3", "-c", TRY, address, "3"])).text == "TimeoutError\n"
    with running_program(in_its_network(engine_folder, "python3", "-uc", SERVE)) as machine:
        assert machine.stdout is not None
        assert machine.stdout.readline() == "up\n"
        gateway = (await one.exec("awk '$2 == \"00000000\" {print $3}' /proc/net/route")).text.strip()
        machine_s = ".".join(str(byte) for byte in reversed(bytes.fromhex(gateway)))
        assert (await other.exec(["python3", "-c", TRY, machine_s, "60"])).text == "hello\n"
    none = await public.create(SandboxSpec())
    for each in (address, machine_s):
        assert (await none.exec(["python3", "-c", TRY, each, "3"])).text == "OSError\n"


async def test_the_network_goes_with_the_backend(public: DockerBackend, engine_folder: Path) -> None:
    await public.create(PUBLIC)
    listed = ["docker", "-H", f"unix://{engine_folder}/sock", "network", "ls", "-q", "--filter", "label=agentrl.owner"]
    assert len(subprocess.run(listed, capture_output=True, check=True).stdout.split()) == 1
    await public.close()
    assert subprocess.run(listed, capture_output=True, check=True).stdout == b""
    links = subprocess.run(
        in_its_network(engine_folder, "ip", "-o", "link"), capture_output=True, check=True, text=True
    )
    assert links.stdout.count("\n") == 1, "lo alone"


async def test_a_network_that_could_not_be_made_is_made_for_the_next(
    public: DockerBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And who waits for it meanwhile does not begin without it."""
    make, failed = type(public)._make_network, [False]

    def first_fails(self: DockerBackend, api: Any, name: str) -> None:
        if not failed[0]:
            failed[0] = True
            raise OSError("the engine is out of addresses")
        make(self, api, name)

    monkeypatch.setattr(type(public), "_make_network", first_fails)
    made = await asyncio.gather(*(public.create(PUBLIC) for _ in range(3)), return_exceptions=True)
    assert [type(each) for each in made].count(SandboxStartFailed) == 1, made
    assert sum(not isinstance(each, BaseException) for each in made) == 2
