"""The docker backend with an engine that refuses, fails, or is away. A fake stands in for the client of the engine."""

from __future__ import annotations

import asyncio
import errno
import io
import os
import socket
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("docker", reason="the package docker is missing: pip install 'agentrl-framework[docker]'")

import docker
import requests

from agentrl.sandbox.docker import backend as backends
from agentrl.sandbox.docker import container as containers
from agentrl.sandbox.docker.backend import DockerBackend, _capabilities
from agentrl.sandbox.docker.container import Container, ContainerSpec
from agentrl.sandbox.docker.create_limiter import CreateLimiter, EngineAway, EngineChoked
from agentrl.sandbox.docker.engine import ContainerEngine
from agentrl.sandbox.docker.image import ContainerImage, look_at, with_own_folders
from agentrl.sandbox.docker.owner import reap
from agentrl.sandbox.owner import MACHINE, OWNER, machine
from agentrl.sandbox.toolbox.wire import Wire
from agentrl.types.sandbox import SandboxImageUnusable, SandboxSpec, SandboxStartFailed, SandboxUnavailable

HOST = "unix:///run/of-nobody.sock"


def answered(code: int, why: str) -> Exception:
    """What the package raises when the engine answers a call with an error."""
    response = requests.Response()
    response.status_code = code
    kind = docker.errors.NotFound if code == 404 else docker.errors.APIError
    made: Exception = kind(why, response=response, explanation=why)
    return made


AWAY = requests.exceptions.ConnectionError("Connection refused")
LOST = docker.errors.InvalidVersion("of a future")
BUSY = answered(500, "the disk is full")
GONE = answered(404, "No such container: x")
GOING = answered(409, "removal of container x is already in progress")


class Client:
    """The engine's client: calls of each method get their answers in order, and the last one again and again.

    An answer may be an exception, or a function that makes it.
    """

    api_version = "1.43"

    def __init__(self, **answers: Any) -> None:
        self._answers = {name: each if isinstance(each, list) else [each] for name, each in answers.items()}
        self.calls: list[tuple[str, Any]] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **settings: Any) -> Any:
            self.calls.append((name, arguments[0] if arguments else None))
            left = self._answers.get(name, [None])
            answer = left.pop(0) if len(left) > 1 else left[0]
            if isinstance(answer, Exception):
                raise answer
            return answer() if callable(answer) else answer

        return call

    def count(self, name: str) -> int:
        return sum(each == name for each, _ in self.calls)


def engine_with(client: Client) -> ContainerEngine:
    engine = ContainerEngine(HOST)
    engine._client = lambda timeout_s: client  # type: ignore[method-assign]
    return engine


# The engine


@pytest.mark.parametrize(
    ("error", "kind", "why"),
    [
        (AWAY, EngineAway, f"no container engine answers at {HOST}[\\s\\S]*install and start one"),
        (requests.exceptions.ConnectionError("Connection aborted."), EngineChoked, "the container engine broke off"),
        (LOST, EngineChoked, "broke off: of a future"),
        (BUSY, EngineChoked, "the container engine failed: the disk is full"),
        (requests.exceptions.ReadTimeout(), EngineChoked, "did not answer within 60 s"),
        (GONE, docker.errors.NotFound, "No such container"),
    ],
)
def test_how_an_engine_failed_is_told_apart(error: Exception, kind: type[Exception], why: str) -> None:
    client = Client(info=error)
    with pytest.raises(kind, match=why) as failed:
        engine_with(client).ask(lambda api: api.info())
    assert type(failed.value) is kind
    assert client.count("close") == 1, "a connection for each call that failed would be left"


@pytest.mark.parametrize(("group", "named"), [("wheel", "wheel"), (KeyError(1234), "docker"), (OSError(), "docker")])
def test_who_may_not_use_the_engine_learns_the_group_that_may(
    group: str | Exception, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "docker.sock").touch()

    def group_of(path: Path) -> str:
        if isinstance(group, Exception):
            raise group
        return group

    monkeypatch.setattr(os, "access", lambda path, mode: False)
    monkeypatch.setattr(Path, "group", group_of)
    with pytest.raises(SandboxUnavailable, match="no permission to use the container engine") as refused:
        ContainerEngine(f"unix://{tmp_path}/docker.sock").open()
    assert refused.value.remedy == f"sudo usermod -aG {named} $USER, then log in again"


# The backend


def test_a_full_temp_folder_says_where_to_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: DockerBackend) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    backend = DockerBackend(HOST)
    monkeypatch.setattr(backend.engine, "open", dict)
    monkeypatch.setattr(DockerBackend, "_make_folder", full)
    with pytest.raises(SandboxUnavailable, match=r"docker backend cannot write .*: No space left[\s\S]*TMPDIR"):
        backend.preflight(SandboxSpec())


def test_what_an_engine_does_not_enforce_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    info = {"CgroupVersion": "1", "SecurityOptions": ["name=seccomp,profile=unconfined"], "MemoryLimit": True}
    monkeypatch.setattr(backends, "can_limit_tcp", lambda: False)
    monkeypatch.setattr(backends, "filter_program", lambda: None)
    known = _capabilities(info)
    assert known.note.split("; ") == [
        "this engine applies no seccomp profile of its own",
        "the engine's control groups are not ours to write: memory of TCP sockets is not limited",
        "no libseccomp: system calls are not filtered beyond the engine's own profile",
    ]
    assert (known.memory, known.cpu, known.pids) == ("cgroup v1", "none", "none")
    monkeypatch.setattr(backends, "filter_program", lambda: b"filter")
    assert _capabilities({"CgroupVersion": "2", "SecurityOptions": ["name=seccomp,profile=builtin"]}).note == ""


def test_what_cannot_be_removed_of_a_dead_owner_is_an_error() -> None:
    left = {"Id": "c1", "Names": ["/agentrl-x-1"], "Labels": {OWNER: "1-1-1-a", MACHINE: "an earlier boot/1"}}
    own = {"Id": "c2", "Names": ["/agentrl-y-1"], "Labels": {OWNER: "of somebody", MACHINE: machine()}}
    gone = Client(containers=[[left, own]], images=[[]], networks=[[]], remove_container=GONE)
    assert reap(engine_with(gone)) == ["container agentrl-x-1"], "another owner was quicker"
    assert [id for name, id in gone.calls if name == "remove_container"] == ["c1"]
    away = Client(containers=[[left]], images=[[]], networks=[[]], remove_container=AWAY)
    with pytest.raises(EngineAway):
        reap(engine_with(away))


# Images


ABOUT = {"Id": "sha256:0123456789abcdef", "Config": {}}


def probed(tmp_path: Path, **answers: Any) -> ContainerImage:
    client = Client(**{"inspect_image": ABOUT, "create_container": {"Id": "probe"}, **answers})
    try:
        return look_at(engine_with(client), "task", tmp_path, {}, {})
    finally:
        assert client.count("remove_container") == (client.count("start") > 0), "the probe's container is removed"


@pytest.mark.parametrize(
    ("code", "said", "why"),
    [(1, b"it has no bash\n", "it has no bash"), (139, b"", "the probe ended with code 139")],
)
def test_an_image_that_cannot_be_a_sandbox_says_what_it_lacks(code: int, said: bytes, why: str, tmp_path: Path) -> None:
    with pytest.raises(SandboxImageUnusable, match=f"the image 'task' cannot be a sandbox: {why}") as unfit:
        probed(tmp_path, wait={"StatusCode": code}, logs=said)
    assert "add python3 (3.9 or newer) and bash" in str(unfit.value.remedy)
    assert list(tmp_path.iterdir()) == [], "its tools would be taken for complete"


def test_a_probe_without_room_for_the_tools_is_no_fault_of_the_image(tmp_path: Path) -> None:
    with pytest.raises(SandboxUnavailable, match=r"No space left[\s\S]*TMPDIR") as full:
        probed(tmp_path, wait={"StatusCode": 75}, logs=b"No space left on device\n")
    assert not isinstance(full.value, SandboxImageUnusable)


@pytest.mark.parametrize("call", ["inspect_image", "start"])
def test_an_engine_that_fails_during_the_probe_is_no_fault_of_the_image(call: str, tmp_path: Path) -> None:
    with pytest.raises(EngineAway):
        probed(tmp_path, **{call: AWAY})
    assert list(tmp_path.iterdir()) == []


def packed(*names: str) -> Iterator[bytes]:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name in names:
            archive.addfile(tarfile.TarInfo(name))
    yield out.getvalue()


def test_folders_that_an_image_lacks_are_left_out_and_a_failure_is_not(tmp_path: Path) -> None:
    image = ContainerImage("sha256:1", tmp_path, ())
    archives = [GONE, lambda: (packed("data", "data/file"), {}), lambda: (packed("empty"), {})]
    client = Client(
        create_container={"Id": "c"},
        get_archive=[*archives],
        wait={"StatusCode": 0},
        logs=b"/data\n",
        commit={"Id": "sha256:2"},
    )
    found = with_own_folders(engine_with(client), image, ["/absent", "/data", "/empty"], {})
    assert (found.id, found.in_place) == ("sha256:2", ("/data",))
    away = Client(create_container={"Id": "c"}, get_archive=[lambda: (packed("data", "data/file"), {}), AWAY])
    with pytest.raises(EngineAway):
        with_own_folders(engine_with(away), image, ["/data", "/other"], {})
    assert away.calls[-2] == ("remove_container", "c")


def test_files_that_cannot_be_given_to_the_user_of_the_sandbox_are_named(tmp_path: Path) -> None:
    client = Client(
        create_container={"Id": "c"},
        get_archive=lambda: (packed("data", "data/file"), {}),
        wait={"StatusCode": 1},
        logs=b"PermissionError: /data/file\n",
    )
    image = ContainerImage("sha256:1", tmp_path, ())
    with pytest.raises(SandboxImageUnusable, match="/data cannot be given to .*: PermissionError: /data/file") as unfit:
        with_own_folders(engine_with(client), image, ["/data"], {})
    assert unfit.value.place == "sandbox.spec.workdir"
    assert client.count("commit") == 0


# A container


def container_on(client: Client, tmp_path: Path) -> Container:
    return Container(engine_with(client), "box", tmp_path / "1")


async def started(client: Client, tmp_path: Path) -> None:
    image = ContainerImage("sha256:1", tmp_path, ())
    spec = ContainerSpec(SandboxSpec(), image, "none", {})
    await container_on(client, tmp_path).start(spec, CreateLimiter(), Wire("w"))


async def test_an_engine_that_refuses_a_container_says_why(tmp_path: Path) -> None:
    with pytest.raises(SandboxStartFailed, match="the container engine refused: no such runtime"):
        await started(Client(create_container=answered(400, "no such runtime")), tmp_path)


async def test_an_engine_that_goes_away_while_it_makes_a_container_is_away(tmp_path: Path) -> None:
    with pytest.raises(EngineAway):
        await started(Client(create_container={"Id": "c"}, start=AWAY), tmp_path)


@pytest.mark.parametrize(
    ("logs", "told"), [(b" Illegal instruction\n", "Illegal instruction"), (b"", "no message"), (AWAY, "no message")]
)
async def test_a_toolbox_that_does_not_connect_in_time_is_quoted(
    logs: bytes | Exception, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(containers, "START_S", 0.0)
    with pytest.raises(SandboxStartFailed, match=f"the toolbox did not come up: {told}$"):
        await started(Client(create_container={"Id": "c"}, logs=logs), tmp_path)


async def test_a_container_that_ended_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def wait(futures: list[asyncio.Future[Any]], timeout: float) -> tuple[set[Any], set[Any]]:
        await asyncio.sleep(0)
        return set(), set(futures)

    there = SimpleNamespace(**{name: getattr(asyncio, name) for name in ("ensure_future", "get_running_loop")})
    monkeypatch.setattr(containers, "asyncio", SimpleNamespace(**vars(there), wait=wait))
    states = [{"State": {"Running": True}}, {"State": {"Running": False}}]
    client = Client(inspect_container=states, logs=b"exec format error\n")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "host"))
        listener.listen(1)
        listener.setblocking(False)
        with pytest.raises(SandboxStartFailed, match="the container ended at once: exec format error"):
            await container_on(client, tmp_path)._caller(listener)
    assert client.count("inspect_container") == 2


@pytest.mark.parametrize(
    ("state", "dead"),
    [
        ({"State": {"OOMKilled": True, "Running": False}}, True),
        ({"State": {"OOMKilled": True, "Running": True}}, False),  # one of its programs was killed
        ({"State": {"OOMKilled": False, "Running": False}}, False),
        (GONE, False),
        (AWAY, False),
    ],
)
async def test_only_an_engine_that_says_so_blames_memory(state: Any, dead: bool, tmp_path: Path) -> None:
    client = Client(inspect_container=[state])
    assert await container_on(client, tmp_path)._killed_for_memory() is dead


@pytest.mark.parametrize(
    ("answers", "calls", "pauses"),
    [
        ([None], 1, []),
        ([GONE], 1, []),
        ([AWAY], 1, []),  # what is left is removed when the backend is closed
        ([GOING, GOING, GONE], 3, [0.1, 0.5]),
        ([BUSY, None], 2, [0.1]),
        ([BUSY], 4, [0.1, 0.5, 2.0, 0.0]),
    ],
)
async def test_a_removal_is_tried_again_where_that_helps(
    answers: list[Any], calls: int, pauses: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paused: list[float] = []

    async def sleep(seconds: float) -> None:
        paused.append(seconds)

    client = Client(remove_container=[*answers])
    container = container_on(client, tmp_path)
    container.folder.mkdir()
    container._making = asyncio.get_running_loop().create_future()
    container._making.set_result(None)
    names = ("wait", "to_thread")
    monkeypatch.setattr(
        containers, "asyncio", SimpleNamespace(**{name: getattr(asyncio, name) for name in names}, sleep=sleep)
    )
    await container.remove()
    assert (client.count("remove_container"), paused) == (calls, pauses)
    assert not container.folder.exists()


async def test_an_error_of_ours_during_a_removal_is_raised(tmp_path: Path) -> None:
    container = container_on(Client(remove_container=TypeError("an argument")), tmp_path)
    container._making = asyncio.get_running_loop().create_future()
    container._making.set_result(None)
    with pytest.raises(TypeError, match="an argument"):
        await container.remove()


@pytest.mark.parametrize(
    ("lines", "there", "found"),
    [
        ("0::/docker/c1\n", "/sys/fs/cgroup/docker/c1/memory.events", ("/sys/fs/cgroup/docker/c1", 2, "")),
        (
            "4:memory:/docker/c1\n3:cpu,cpuacct:/docker/c1\n",
            "/sys/fs/cgroup/memory/docker/c1/memory.oom_control",
            ("/sys/fs/cgroup/memory/docker/c1", 1, "/sys/fs/cgroup/cpuacct/docker/c1"),
        ),
        ("0::/../c1\n", "", None),  # of another namespace
        (None, "", None),  # the process has ended
    ],
)
def test_the_group_of_a_container_is_that_of_its_toolbox(
    lines: str | None, there: str, found: tuple[str, int, str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(path: str) -> io.StringIO:
        assert path == "/proc/7/cgroup"
        if lines is None:
            raise FileNotFoundError(path)
        return io.StringIO(lines)

    monkeypatch.setattr(containers, "open", opened, raising=False)
    monkeypatch.setattr(os.path, "exists", lambda path: path == there)
    group = containers._group_of(7)
    assert (group and (group.memory, group.version, group.cpu)) == found
