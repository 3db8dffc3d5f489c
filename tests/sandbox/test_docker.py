"""The docker backend against a real engine: what containers are like, what is refused, what is left (nothing)."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest

pytest.importorskip("docker", reason="the package docker is missing: pip install 'agentrl-framework[docker]'")

from agentrl.sandbox.docker.backend import DockerBackend, DockerSandbox
from agentrl.sandbox.docker.container import ContainerSpec
from agentrl.sandbox.docker.create_limiter import EngineChoked
from agentrl.sandbox.docker.engine import ContainerEngine
from agentrl.sandbox.docker.owner import reap
from agentrl.sandbox.owner import MACHINE, OWNER
from agentrl.sandbox.registry import open_backend
from agentrl.types.sandbox import (
    CapabilityMissing,
    SandboxLost,
    SandboxSpec,
    SandboxStartFailed,
    SandboxUnavailable,
)
from tests.sandbox.dockerd import NO_PYTHON
from tests.sandbox.test_backend import processes_with, running
from tests.waiting import running_program, turns, until, until_async


def things_of(backend: DockerBackend, owner: str) -> list[str]:
    """What the engine and the temp folder hold of an owner."""

    def look(api: Any) -> list[str]:
        query = {"filters": {"label": f"{OWNER}={owner}"}}
        containers = [name for each in api.containers(all=True, **query) for name in each["Names"]]
        return containers + [each["Name"] for each in api.networks(**query)]

    # Folders of containers are numbers; those of images, which stay, are twelve hexadecimal digits.
    folders = [path for path in Path(f"/tmp/agentrl-{owner}").glob("*") if path.name.isdigit() and len(path.name) < 12]
    return backend.engine.ask(look) + [str(path) for path in folders]


@pytest.fixture
def nothing_left(open_docker: DockerBackend) -> Iterator[None]:
    """The engine holds as much after the test as before it."""
    before = things_of(open_docker, open_docker.owner)
    yield
    assert things_of(open_docker, open_docker.owner) == before


async def container(backend: DockerBackend, sandbox: DockerSandbox) -> dict[str, Any]:
    about: dict[str, Any] = await backend.engine.call(lambda api: api.inspect_container(sandbox._container.name))
    return about


# What a container is like


@pytest.mark.slow
async def test_programs_have_no_rights(docker_backend: DockerBackend) -> None:
    async with await docker_backend.create(SandboxSpec()) as sandbox:
        status = (await sandbox.exec("grep -E '^(Uid|Cap...|NoNewPrivs|Seccomp):' /proc/self/status; id -un")).text
        assert "NoNewPrivs:\t1" in status
        assert "Seccomp:\t2" in status
        assert status.count("0000000000000000") == 5
        assert status.endswith("agent\n")
        assert not (await sandbox.exec("touch /usr/x /etc/x /run/x")).ok
        assert (await sandbox.exec("touch /tmp/x /work/x /dev/shm/x")).ok
        assert not (await sandbox.exec("ls /var/run/docker.sock /run/docker.sock")).ok
        assert (await sandbox.exec("ls /sys/class/net")).text == "lo\n"
        assert not (await sandbox.exec("ls /run/agentrl/wire/host")).ok


@pytest.mark.slow
async def test_limits_are_set(docker_backend: DockerBackend) -> None:
    spec = SandboxSpec(memory_mb=128, pids=40, disk_mb=8, cpu=0.5, workdir="/home/agent")
    async with await docker_backend.create(spec, label="episode-3") as sandbox:
        host = (about := await container(docker_backend, sandbox))["HostConfig"]
        assert (host["Memory"], host["MemorySwap"], host["PidsLimit"]) == (128 << 20, 128 << 20, 40)
        assert (host["CpuQuota"], host["CpuPeriod"]) == (50_000, 100_000)
        assert host["NetworkMode"] == "none"
        assert about["Config"]["Labels"][OWNER] == docker_backend.owner
        assert about["Config"]["Labels"]["agentrl.run"] == "episode-3"
        full = await sandbox.exec("head -c 100000000 /dev/zero > x; stat -c %s x; pwd")
        assert full.stdout == f"{8 << 20}\n/home/agent\n".encode()
        assert (await sandbox.exec(["python3", "-c", "bytearray(1 << 30)"])).outcome == "oom"
        assert (await sandbox.exec("kill -9 $$")).outcome == "signal"
        assert (await sandbox.exec("sleep 1000", timeout_s=0.1)).outcome == "timeout"
        assert (await sandbox.health()).oom_kills == 1


@pytest.mark.slow
async def test_public_is_a_network_of_our_own(docker_backend: DockerBackend) -> None:
    async with await docker_backend.create(SandboxSpec(network="public")) as sandbox:
        (name,) = (await container(docker_backend, sandbox))["NetworkSettings"]["Networks"]
        about = await docker_backend.engine.call(lambda api: api.inspect_network(name))
        assert about["Options"]["com.docker.network.bridge.enable_icc"] == "false"
        assert about["Labels"][OWNER] == docker_backend.owner


# What is refused


def test_no_engine(tmp_path: Path) -> None:
    with pytest.raises(SandboxUnavailable, match="no container engine at [\\s\\S]*apt-get install"):
        DockerBackend(f"unix://{tmp_path}/sock").preflight(SandboxSpec())


def test_an_engine_elsewhere() -> None:
    with pytest.raises(CapabilityMissing, match="another machine"):
        DockerBackend("tcp://10.0.0.1:2375").preflight(SandboxSpec())


def test_no_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sock").touch()
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(SandboxUnavailable, match="permission[\\s\\S]*usermod -aG"):
        DockerBackend(f"unix://{tmp_path}/sock").preflight(SandboxSpec())


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (SandboxSpec(rootfs="/"), "sandbox.spec.rootfs"),
        (SandboxSpec(image="agentrl/bsae"), r"agentrl/bsae'; it has:[\s\S]*agentrl/base:latest"),
        (SandboxSpec(image="agentrl/swe-none"), "agentrl sandbox build swe-none"),
        (SandboxSpec(image=NO_PYTHON), r"it has no python3[\s\S]*apt-get install -y python3"),
    ],
)
def test_what_cannot_be_made_is_refused_beforehand(open_docker: DockerBackend, spec: SandboxSpec, words: str) -> None:
    with pytest.raises((CapabilityMissing, SandboxUnavailable), match=words):
        open_docker.preflight(spec)


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_left")
async def test_what_the_engine_refuses_leaves_nothing(docker_backend: DockerBackend) -> None:
    with pytest.raises(SandboxStartFailed, match="engine refused"):
        await docker_backend.create(SandboxSpec(workdir="/"))
    with pytest.raises(SandboxStartFailed, match="setup"):
        await docker_backend.create(SandboxSpec(setup=("exit 3",)))


# Losing sandboxes


@pytest.mark.slow
async def test_a_removed_container_is_a_lost_sandbox(docker_backend: DockerBackend) -> None:
    sandbox = await docker_backend.create(SandboxSpec(), label="episode-7")
    pending = asyncio.create_task(sandbox.exec("sleep 98768"))
    await running("sleep 98768")
    await docker_backend.engine.call(lambda api: api.remove_container(sandbox._container.name, force=True))
    with pytest.raises(SandboxLost, match="episode-7"):
        await pending
    assert not (await sandbox.health()).alive
    await sandbox.close()


@pytest.mark.slow
async def test_ttl(docker_backend: DockerBackend) -> None:
    with pytest.raises(SandboxLost, match="ttl_s"):
        await (await docker_backend.create(SandboxSpec(ttl_s=0.3))).exec("sleep 1000")


@pytest.mark.slow
async def test_an_engine_that_does_not_answer(docker_host: str, tmp_path: Path) -> None:
    deaf = await asyncio.start_unix_server(lambda reader, writer: asyncio.Event().wait(), f"{tmp_path}/deaf")
    engine = ContainerEngine(f"unix://{tmp_path}/deaf")
    engine._version = "1.41"
    with pytest.raises(EngineChoked, match=r"within 0\.2 s"):
        await engine.call(lambda api: api.ping(), 0.2)
    deaf.close()


# Leaving nothing


STAGES: dict[str, Callable[[DockerSandbox], object]] = {
    "begun": lambda sandbox: True,
    "asked for": lambda sandbox: sandbox._container._making,
    "made": lambda sandbox: sandbox._container._making is not None and sandbox._container._making.done(),
    "speaks": lambda sandbox: sandbox.wire._transport,
    "set up": lambda sandbox: sandbox.wire._last_id,
}
"""The stage that a create has reached."""


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_left")
async def test_creates_that_are_cancelled_leave_nothing(docker_backend: DockerBackend) -> None:
    docker_backend.preflight(SandboxSpec())

    async def one(stage: str) -> None:
        task = asyncio.create_task(docker_backend.create(SandboxSpec(), label=stage))
        await until_async(
            lambda: task.done() or any(s.label == stage and STAGES[stage](s) for s in docker_backend._alive)
        )
        task.cancel()
        with suppress(asyncio.CancelledError):  # it may have been quicker
            await (await task).close()

    task = asyncio.create_task(docker_backend.create(SandboxSpec()))
    task.cancel()  # before its first step
    await asyncio.gather(task, *map(one, STAGES), return_exceptions=True)
    assert not docker_backend._alive


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_left")
async def test_a_create_that_the_engine_is_slow_with_is_waited_for(
    docker_backend: DockerBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    docker_backend.preflight(SandboxSpec())  # so that the create is what is cancelled
    create, begun, cancelled, over = ContainerSpec.create, threading.Event(), threading.Event(), threading.Event()

    def slow(*args: Any) -> None:
        begun.set()
        cancelled.wait()
        create(*args)
        over.set()

    monkeypatch.setattr(ContainerSpec, "create", slow)
    task = asyncio.create_task(docker_backend.create(SandboxSpec()))
    await asyncio.to_thread(begun.wait)
    task.cancel()
    await turns()
    assert not task.done()
    cancelled.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert over.is_set()


CLOSING = """
import asyncio, os, sys
from agentrl.sandbox.docker.backend import DockerBackend
from agentrl.types.sandbox import SandboxSpec
async def main():
    backend = DockerBackend(sys.argv[1])
    print(backend.owner)
    before = len(os.listdir("/proc/self/fd"))
    sandbox = await backend.create(SandboxSpec(snapshots=True))
    await backend.create(SandboxSpec(network="public"))
    await sandbox.snapshot()
    print(backend._folder)
    print("closing", flush=True)
    sys.stdin.readline()
    await backend.close()
    print(len(os.listdir("/proc/self/fd")) - before)
    await backend.close()
asyncio.run(main())
"""


@pytest.mark.slow
def test_closing_the_backend_leaves_nothing(docker_host: str) -> None:
    """In a process of its own: in that of the tests, others open and close descriptors meanwhile."""
    with subprocess.Popen(
        [sys.executable, "-c", CLOSING, docker_host], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        owner, folder, closing = (program.stdout.readline().strip() for _ in range(3))
        assert closing == "closing"
        backend = DockerBackend(docker_host)
        assert len(things_of(backend, owner)) == 5  # two containers, their folders, a network
        assert Path(folder).exists()
        descriptors, _ = program.communicate("\n")
    assert int(descriptors) <= 0
    assert program.returncode == 0
    assert things_of(backend, owner) == []
    assert not Path(folder).exists()


DRIVER = """
import asyncio, sys
from agentrl.sandbox.registry import open_backend
from agentrl.types.sandbox import SandboxSpec
async def main():
    backend = open_backend("docker", {"host": sys.argv[1]})
    backend.preflight(SandboxSpec())
    print(backend.owner, flush=True)
    call, counts = backend.engine.call, {"asked": 0, "up": 0}
    def tell(what):
        counts[what] += 1
        print(what, counts[what], flush=True)
    async def telling(*arguments):
        tell("asked")
        return await call(*arguments)
    backend.engine.call = telling
    async def one():
        sandbox = await backend.create(SandboxSpec(network={"allow": ["example.org"]}))
        tell("up")
        await sandbox.exec(f"setsid sleep {sys.argv[2]} & sleep {sys.argv[2]}")
    await asyncio.gather(*(one() for _ in range(3)))
asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize("after", ["asked 1", "asked 3", "up 1", "up 3"])
def test_nothing_survives_a_killed_driver(docker_host: str, after: str) -> None:
    mark = f"98765{os.getpid()}"  # another worker may run this with another stage
    with running_program([sys.executable, "-c", DRIVER, docker_host, mark]) as driver:
        assert driver.stdout is not None
        owner = driver.stdout.readline().strip()
        assert f"{after}\n" in iter(driver.stdout.readline, "")  # in the middle of creates, or after them
        if after == "up 3":
            until(lambda: len(processes_with(f"sleep\0{mark}")) == 6)
    backend = DockerBackend(docker_host)
    left = True
    while left:  # a call that the engine had accepted may still bring a container about
        reap(backend.engine)
        asyncio.run(backend.reap())
        left = bool(things_of(backend, owner)) or Path(f"/tmp/agentrl-{owner}").exists()
    assert not processes_with(mark)


def test_a_container_that_is_going_has_no_name() -> None:
    class Api:
        def containers(self, **query: Any) -> list[dict[str, Any]]:
            return [{"Id": "0123456789abcdef", "Names": None, "Labels": {}}]

        def images(self, **query: Any) -> list[dict[str, Any]]:
            return []

        def networks(self, **query: Any) -> list[dict[str, Any]]:
            return []

    class Going:
        def ask(self, call: Any, timeout_s: float) -> Any:
            return call(Api())

    assert reap(cast(ContainerEngine, Going()), owner="owner", dry=True) == ["container 0123456789ab"]


@pytest.mark.slow
async def test_the_living_are_not_reaped(docker_backend: DockerBackend) -> None:
    async with await docker_backend.create(SandboxSpec()) as sandbox:
        other = DockerBackend(docker_backend.engine.host)
        await other.reap()
        assert (await sandbox.exec("echo well")).text == "well\n"
        labels = (await container(docker_backend, sandbox))["Config"]["Labels"]
        assert "/" in labels[MACHINE]


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system")
@pytest.mark.parametrize("pages", [3, 12, 24])
def test_a_full_temp_folder_is_told_as_such(docker_host: str, tmp_path: Path, pages: int) -> None:
    """Wherever it fills up: at the folder, the toolbox's sources, or what the probe compiles from within."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={pages * 4}k,mode=1777", "none", str(tmp_path)], check=True)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("tempfile.tempdir", str(tmp_path))
            backend = DockerBackend(docker_host)
            for _ in range(2):  # what was half written is not taken for whole
                with pytest.raises(SandboxUnavailable, match=r"No space left[\s\S]*TMPDIR"):
                    backend.preflight(SandboxSpec())
            asyncio.run(backend.close())
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_left")
async def test_snapshots_go_with_their_users(docker_backend: DockerBackend) -> None:
    kept = len(docker_backend.snapshots)
    origin = await docker_backend.create(SandboxSpec(snapshots=True, setup=("echo setup >> ran",)), label="tree")
    ref = await origin.snapshot()
    shell = await origin.session()
    await shell.run("echo new > new; sleep 98766 &")
    await origin.restore(ref)
    assert (await (await origin.session()).run("pwd; jobs; cat ran; ls")).text == "/work\nsetup\nran\n"
    first, second = await origin.fork(2)
    await origin.close()
    await first.exec("echo first > mine")
    (grandchild,) = await second.fork(1)
    assert (await grandchild.exec("ls; cat ran")).text == "ran\nsetup\n"
    await asyncio.gather(first.close(), second.close(), grandchild.close())
    assert len(docker_backend.snapshots) == kept + 1
    await docker_backend.snapshots.drop(ref)
    assert len(list(docker_backend.folder.glob("snapshot-*"))) == kept  # those of other tests


def test_it_is_opened_by_name() -> None:
    assert open_backend("docker").name == "docker"
