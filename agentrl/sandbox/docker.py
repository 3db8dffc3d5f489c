"""The `docker` backend: containers of a Docker Engine on this machine.

The engine is asked only to make and to remove. All else goes to the toolbox inside, over a unix socket, as in the
`namespace` backend: so that behaviour is one, and a command costs no API call. The toolbox is process 1 of the
container and dies with our end of the socket; a killed driver's containers end by themselves.
"""

from __future__ import annotations

import asyncio
import fcntl
import itertools
import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agentrl.sandbox.client import ToolboxSandbox
from agentrl.sandbox.contract import (
    Capabilities,
    CapabilityMissing,
    NetworkAllow,
    SandboxSpec,
    SandboxStartFailed,
)
from agentrl.sandbox.docker_container import Container, Plan, hardening
from agentrl.sandbox.docker_engine import Engine
from agentrl.sandbox.docker_gate import Gate
from agentrl.sandbox.docker_image import Image, look_at
from agentrl.sandbox.docker_owner import labels, reap
from agentrl.sandbox.docker_snapshot import Snapshot, Snapshots
from agentrl.sandbox.egress import SOCKET, Egress, open_way_out
from agentrl.sandbox.owner import new_label
from agentrl.sandbox.rootfs import reap_folders
from agentrl.sandbox.wire import Wire

DEFAULT_IMAGE = "agentrl/base:latest"


class DockerBackend:
    """Makes sandboxes out of containers.

    Args:
        host: the engine's address; default: `DOCKER_HOST`, else the usual socket.
        gate: how many creates at once, and when to stop asking.
    """

    name = "docker"

    def __init__(self, host: str | None = None, gate: Gate | None = None) -> None:
        self.engine = Engine(host)
        self.gate = gate or Gate()
        self.egress = Egress()
        self.owner = new_label()
        self.snapshots = Snapshots(self.engine, labels(self.owner))
        self._folder: Path | None = None
        self._remove_folder: Callable[[], object] = lambda: None
        self._known: Capabilities | None = None
        self._images: dict[str, Image] = {}
        self._network = ""
        self._alive: set[DockerSandbox] = set()
        self._numbers = itertools.count(1)
        self._opening = threading.RLock()

    @property
    def capabilities(self) -> Capabilities:
        """What is enforced here."""
        with self._opening:
            if self._known is None:
                info = self.engine.open()
                self._make_folder()
                reap(self.engine)
                self._known = _capabilities(info)
            return self._known

    def preflight(self, spec: SandboxSpec) -> None:
        """Refuses what cannot be enforced, and probes the image, see `Backend.preflight`."""
        known = self.capabilities
        wants = (
            (spec.rootfs is not None, "rootfs", "runs images", "give image: NAME, or use the namespace backend"),
            (known.memory == "none", "memory_mb", "cannot limit memory here", "enable the memory cgroup"),
            (known.pids == "none", "pids", "cannot limit processes here", "enable the pids cgroup"),
            (spec.cpu is not None and known.cpu == "none", "cpu", "cannot limit processor time", "leave cpu out"),
            (
                spec.disk_mb is not None and spec.snapshots,
                "disk_mb",
                "cannot bound the files of a container that can be snapshot (they are in no tmpfs)",
                "leave disk_mb out, or snapshots",
            ),
        )
        for wanted, key, problem, remedy in wants:
            if wanted:
                raise CapabilityMissing(f"the docker backend {problem}", place=f"sandbox.spec.{key}", remedy=remedy)
        self._image(spec)

    async def create(self, spec: SandboxSpec, *, label: str = "") -> DockerSandbox:
        """A fresh sandbox."""
        if self._known is None or (spec.image or DEFAULT_IMAGE) not in self._images:
            await asyncio.to_thread(self.preflight, spec)  # a probe takes a second
        else:
            self.preflight(spec)
        return await self.launch(spec, label, self._image(spec))

    async def launch(self, spec: SandboxSpec, label: str, source: Image | Snapshot) -> DockerSandbox:
        """A sandbox of an image, or of a snapshot, which has the spec's files and setup in it."""
        sandbox = DockerSandbox(self, spec, label)
        self._alive.add(sandbox)
        try:
            await sandbox.start(source)
            if isinstance(source, Image):
                await sandbox.prepare()
        except OSError as error:  # the host is out of descriptors, disk or memory
            await sandbox.close()
            raise SandboxStartFailed(f"the host could not start a sandbox: {error}") from error
        except BaseException:
            await sandbox.close()
            raise
        return sandbox

    async def plan(self, spec: SandboxSpec, label: str, source: Image | Snapshot) -> Plan:
        """What the container of such a sandbox is to be."""
        network = "none"
        if spec.network_kind == "public":
            if not self._network:
                self._network = f"agentrl-{self.owner}"
                await self.engine.call(self._make_network)
            network = self._network
        fresh = isinstance(source, Image)
        image = source.image if isinstance(source, Snapshot) else source
        return Plan(spec, image, network, labels(self.owner, label), fresh)

    def container(self) -> Container:
        """One that does not exist yet."""
        number = next(self._numbers)
        assert self._folder is not None
        return Container(self.engine, f"agentrl-{self.owner}-{number}", self._folder / str(number))

    async def reap(self, *, dry: bool = False) -> list[str]:
        """Removes what killed owners left, see `Backend.reap`."""
        self.engine.open()
        return await asyncio.to_thread(reap, self.engine, dry=dry) + reap_folders(dry=dry)

    async def close(self) -> None:
        """Closes every sandbox that it made, and drops its snapshots."""
        await asyncio.gather(*(sandbox.close() for sandbox in list(self._alive)))
        await self.snapshots.drop_all()
        if self._network:
            name, self._network = self._network, ""
            await self.engine.call(lambda api: api.remove_network(name))
        self.egress.stop()
        self._remove_folder()
        self._folder = self._known = None
        self._images.clear()

    async def forget(self, sandbox: DockerSandbox, origin: str) -> None:
        """A sandbox is gone; `origin` is the snapshot that it shared with other forks, if any."""
        self._alive.discard(sandbox)
        await self.snapshots.leave(origin)

    # What all sandboxes share

    def _image(self, spec: SandboxSpec) -> Image:
        name = spec.image or DEFAULT_IMAGE
        with self._opening:
            if name not in self._images:
                assert self._folder is not None
                settings = hardening(512, 64) | {"network_mode": "none", "read_only": True}
                self._images[name] = look_at(self.engine, name, self._folder, settings, labels(self.owner, "probe"))
            return self._images[name]

    def _make_network(self, api: Any) -> None:
        apart = {"com.docker.network.bridge.enable_icc": "false"}  # sandboxes do not see each other
        api.create_network(self._network, driver="bridge", options=apart, labels=labels(self.owner))

    def _make_folder(self) -> None:
        """Named and locked like those of the namespace backend, so that whoever starts next reaps both."""
        reap_folders()
        folder = Path(tempfile.gettempdir()) / f"agentrl-{self.owner}"
        folder.mkdir(mode=0o700)
        lock = os.open(folder / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        self._remove_folder = weakref.finalize(self, _remove, folder, lock)
        self._folder = folder


class DockerSandbox(ToolboxSandbox):
    """A container with the toolbox in it."""

    def __init__(self, backend: DockerBackend, spec: SandboxSpec, label: str) -> None:
        super().__init__(spec, label, Wire(label))
        self._backend = backend
        self._container = backend.container()
        self._image: Image | None = None
        self._ttl: asyncio.TimerHandle | None = None
        self._origin = ""

    async def start(self, source: Image | Snapshot) -> None:
        """Makes the container and its way out, and waits for the toolbox, see `Container.start`."""
        plan = await self._backend.plan(self.spec, self.label, source)
        self._image = plan.image
        await self._container.start(plan, self._backend.gate, self.wire)
        if isinstance(self.spec.network, NetworkAllow):
            await open_way_out(self, self._backend.egress, self._socket, self.spec.network.allow)
        if self._ttl is None:
            loop = asyncio.get_running_loop()
            self._ttl = loop.call_later(self.spec.ttl_s, self._expire)

    def _expire(self) -> None:
        self.wire.end(f"its ttl_s of {self.spec.ttl_s:g} s is over")

    @property
    def _socket(self) -> str:
        return f"{self._container.folder}/{SOCKET}"

    def oom_kills(self) -> int | None:
        """Counted by the control group."""
        return self._container.group.oom_kills() if self._container.group else None

    def memory_mb(self) -> float | None:
        """Counted by the control group."""
        return self._container.group.memory_mb() if self._container.group else None

    async def snapshot(self) -> str:
        """Commits the container, see `Sandbox.snapshot`. It stays until the backend is closed."""
        return (await self._keep()).ref

    async def _keep(self) -> Snapshot:
        if not self.spec.snapshots:
            raise self._no_snapshots()
        assert self._image is not None
        if self.wire.lost:
            raise self.wire.loss()
        return await self._backend.snapshots.keep(self._container.name, self._image, self._backend.owner)

    async def restore(self, ref: str) -> None:
        """A new container of the snapshot in the place of the old one, see `Sandbox.restore`."""
        if not self.spec.snapshots:
            raise self._no_snapshots()
        snapshot = self._backend.snapshots[ref]
        self.wire.end("it was restored")
        self._sessions.clear()
        self._backend.egress.close(self._socket)
        await self._container.remove()
        self.wire, self._container, self._oom_seen = Wire(self.label), self._backend.container(), 0
        try:
            await self.start(snapshot)
        except BaseException:
            await self.close()
            raise

    async def fork(self, number: int) -> list[DockerSandbox]:
        """New sandboxes with the files of this one, see `Sandbox.fork`."""
        snapshot, snapshots = await self._keep(), self._backend.snapshots
        launches = (self._backend.launch(self.spec, f"{self.label}.{n}", snapshot) for n in range(number))
        made = await asyncio.gather(*launches, return_exceptions=True)
        forks = [each for each in made if isinstance(each, DockerSandbox)]
        if failures := [each for each in made if isinstance(each, BaseException)]:
            await asyncio.gather(*(each.close() for each in forks))
            await snapshots.drop(snapshot.ref)
            raise failures[0]
        snapshots.share(snapshot.ref, number)
        for each in forks:
            each._origin = snapshot.ref
        return forks

    async def destroy(self) -> None:
        """Removes the container and its folder."""
        if self._ttl is not None:
            self._ttl.cancel()
        self._backend.egress.close(self._socket)
        await self._container.remove()
        await self._backend.forget(self, self._origin)


def _remove(folder: Path, lock: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)


def _capabilities(info: dict[str, Any]) -> Capabilities:
    means = f"cgroup v{info.get('CgroupVersion', '1')}"
    options = info.get("SecurityOptions") or []
    notes = []
    filtered = any("name=seccomp" in option for option in options)
    if not filtered:
        notes.append("this engine applies no seccomp profile")
    if any("profile=unconfined" in option for option in options):
        filtered = False
        notes.append("this engine's seccomp profile is `unconfined`")
    return Capabilities(
        isolation="container",
        cpu=means if info.get("CpuCfsQuota") else "none",
        memory=means if info.get("MemoryLimit") else "none",
        pids=means if info.get("PidsLimit") else "none",
        disk="tmpfs",
        networks=("none", "allow", "public"),
        images=True,
        rootfs=False,
        snapshots=True,
        endpoints=True,
        syscalls="seccomp" if filtered else "none",
        note="; ".join(notes),
    )
