"""The `docker` backend: containers of a Docker Engine on this machine.

The engine only makes and removes containers. All other requests go to the toolbox inside, over a unix socket, as in
the `namespace` backend: behaviour is the same, and a command costs no API call. The toolbox is process 1 of the
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

from agentrl.sandbox.docker.container import Container, ContainerSpec, hardening
from agentrl.sandbox.docker.create_limiter import CreateLimiter
from agentrl.sandbox.docker.engine import ContainerEngine
from agentrl.sandbox.docker.image import ContainerImage, look_at, with_own_folders
from agentrl.sandbox.docker.owner import reap
from agentrl.sandbox.linux.bounds import ProcessBounds
from agentrl.sandbox.linux.cgroups import can_limit_tcp
from agentrl.sandbox.linux.seccomp import filter_program
from agentrl.sandbox.namespace.rootfs import reap_folders
from agentrl.sandbox.owner import labels, new_label
from agentrl.sandbox.preflight import no_room, refuse
from agentrl.sandbox.toolbox.archives import Archive, Archives
from agentrl.sandbox.toolbox.egress import SOCKET, Egress, open_egress
from agentrl.sandbox.toolbox.snapshot import SnapshotSandbox
from agentrl.types.sandbox import (
    Capabilities,
    NetworkAllow,
    SandboxSpec,
    SandboxStartFailed,
)

DEFAULT_IMAGE = "agentrl/base:latest"
PYTHON = "python3"


class DockerBackend:
    """Makes sandboxes from containers.

    Args:
        host: the engine's address; default: `DOCKER_HOST`, else the usual socket.
        limiter: rate limit and circuit breaker of creates.
    """

    name = "docker"

    def __init__(self, host: str | None = None) -> None:
        self.engine = ContainerEngine(host)
        self.limiter = CreateLimiter()
        self.egress = Egress()
        self.owner = new_label()
        self.snapshots = Archives(self.owner)
        self._folder: Path | None = None
        self._remove_folder: Callable[[], object] = lambda: None
        self._known: Capabilities | None = None
        self._images: dict[tuple[str, tuple[str, ...]], ContainerImage] = {}
        self._network = ""
        self._alive: set[DockerSandbox] = set()
        self._numbers = itertools.count(1)
        self._opening = threading.RLock()

    @property
    def capabilities(self) -> Capabilities:
        """Limits that are enforced on this machine."""
        with self._opening:
            if self._known is None:
                info = self.engine.open()
                try:
                    self._make_folder()
                except OSError as error:
                    raise no_room(self.name, error.strerror) from None
                reap(self.engine)
                self._known = _capabilities(info)
            return self._known

    def preflight(self, spec: SandboxSpec) -> None:
        """Refuses specs that cannot be enforced, and probes the image, see `Backend.preflight`."""
        known = self.capabilities
        wants = (
            (spec.rootfs is not None, "rootfs", "runs images", "give image: NAME, or use the namespace backend"),
            (known.memory == "none", "memory_mb", "cannot limit memory here", "enable the memory cgroup"),
            (known.pids == "none", "pids", "cannot limit processes here", "enable the pids cgroup"),
            (spec.cpu is not None and known.cpu == "none", "cpu", "cannot limit processor time", "leave cpu out"),
        )
        refuse(self.name, spec, wants)
        held = self._image(spec).in_place
        unbounded = (
            bool(held) and spec.disk_mb is not None,
            "disk_mb",
            f"cannot limit the size of {', '.join(held)}, which the image has files in",
            "leave disk_mb out, or use the namespace backend",
        )
        refuse(self.name, spec, (unbounded,))

    async def create(self, spec: SandboxSpec, *, label: str = "") -> DockerSandbox:
        """Creates a sandbox."""
        if self._known is None or _key(spec) not in self._images:
            await asyncio.to_thread(self.preflight, spec)  # a probe takes a second
        else:
            self.preflight(spec)
        return await self.launch(spec, label, None)

    async def launch(self, spec: SandboxSpec, label: str, snapshot: Archive | None) -> DockerSandbox:
        """Starts a sandbox with the spec's files and setup, or with the files of a snapshot, which include them."""
        sandbox = DockerSandbox(self, spec, label)
        self._alive.add(sandbox)
        try:
            await sandbox.start(snapshot)
            if snapshot is None:
                await sandbox.prepare()
        except OSError as error:  # the host is out of descriptors, disk or memory
            await sandbox.close()
            raise SandboxStartFailed(f"the host could not start a sandbox: {error}") from error
        except BaseException:
            await sandbox.close()
            raise
        return sandbox

    async def container_spec(self, spec: SandboxSpec, label: str) -> ContainerSpec:
        """Returns the container's specification for a sandbox."""
        network = "none"
        if spec.network_kind == "public":
            network = self._network or await self.engine.call(self._own_network)
        return ContainerSpec(spec, self._image(spec), network, labels(self.owner, label))

    def container(self) -> Container:
        """Returns a container that is not created yet."""
        number = next(self._numbers)
        return Container(self.engine, f"agentrl-{self.owner}-{number}", self.folder / str(number))

    @property
    def folder(self) -> Path:
        """Folder of sockets, tools and snapshots; exists from the first contact with the engine to `close`."""
        assert self._folder is not None
        return self._folder

    async def reap(self, *, dry: bool = False) -> list[str]:
        """Removes leftovers of killed owners, see `Backend.reap`."""
        self.engine.open()
        return await asyncio.to_thread(reap, self.engine, dry=dry) + reap_folders(dry=dry)

    async def close(self) -> None:
        """Closes every sandbox that it made, and drops its snapshots; also sandboxes that could not be closed while the
        engine was away.

        Raises:
            SandboxUnavailable: the engine is away now. Leftovers are removed by the next backend, or by `gc`.
        """
        await asyncio.gather(*(sandbox.close() for sandbox in list(self._alive)), return_exceptions=True)
        self.egress.stop()
        try:
            if self._known is not None:
                await self.snapshots.drop_all()
                await asyncio.to_thread(reap, self.engine, owner=self.owner)
        finally:
            self._network = ""
            self._remove_folder()
            self._folder = self._known = None
            self._images.clear()

    def forget(self, sandbox: DockerSandbox) -> None:
        """Forgets a sandbox that is gone."""
        self._alive.discard(sandbox)

    # What all sandboxes share

    def _image(self, spec: SandboxSpec) -> ContainerImage:
        key, marks = _key(spec), labels(self.owner, "probe")
        with self._opening:
            if key not in self._images:
                settings = hardening(512, 64) | {"network_mode": "none", "read_only": True}
                image = look_at(self.engine, key[0], self.folder, settings, marks)
                self._images[key] = with_own_folders(self.engine, image, spec.folders_of_image, marks)
            return self._images[key]

    def _own_network(self, api: Any) -> str:
        """The network of all sandboxes with a public one, which is there when this returns."""
        with self._opening:
            if not self._network:
                name = f"agentrl-{self.owner}"
                self._make_network(api, name)
                self._network = name
            return self._network

    def _make_network(self, api: Any, name: str) -> None:
        apart = {"com.docker.network.bridge.enable_icc": "false"}  # sandboxes do not see each other
        api.create_network(name, driver="bridge", options=apart, labels=labels(self.owner))

    def _make_folder(self) -> None:
        """Creates the folder, named and locked as in the namespace backend, so that the next owner reaps both."""
        reap_folders()
        folder = Path(tempfile.gettempdir()) / f"agentrl-{self.owner}"
        folder.mkdir(mode=0o700)
        lock = os.open(folder / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        self._remove_folder = weakref.finalize(self, _remove, folder, lock)
        self._folder = folder


class DockerSandbox(SnapshotSandbox[Archive]):
    """Container with the toolbox in it."""

    def __init__(self, backend: DockerBackend, spec: SandboxSpec, label: str) -> None:
        super().__init__(spec, label, backend.snapshots)
        self._backend = backend
        self._container = backend.container()
        self._packing = asyncio.Lock()

    async def start(self, snapshot: Archive | None) -> None:
        """Starts the container, opens its egress and unpacks the files, see `Container.start`."""
        container = await self._backend.container_spec(self.spec, self.label)
        await self._container.start(container, self._backend.limiter, self.wire)
        if isinstance(self.spec.network, NetworkAllow):
            await open_egress(self, self._backend.egress, self._socket, self.spec.network.allow)
        if snapshot is not None:
            await self._backend.snapshots.put_back(self, PYTHON, snapshot)
        self.limit_life()

    @property
    def _socket(self) -> str:
        return f"{self._container.folder}/{SOCKET}"

    def oom_kills(self) -> int | None:
        """Returns the count of the control group."""
        return self._container.group.oom_kills() if self._container.group else None

    def memory_mb(self) -> float | None:
        """Returns the count of the control group."""
        return self._container.group.memory_mb() if self._container.group else None

    def cpu_s(self) -> float | None:
        """Returns the count of the control group."""
        return self._container.group.cpu_s() if self._container.group else None

    async def keep(self) -> Archive:
        """Packs its files; one packer at a time, as each stops all other programs."""
        most = ProcessBounds.of(self.spec).archive_mb
        async with self._packing:
            return await self._backend.snapshots.keep(self, PYTHON, self._backend.folder, most)

    async def launch(self, label: str, snapshot: Archive) -> DockerSandbox:
        """Starts another container with the files of an archive."""
        return await self._backend.launch(self.spec, label, snapshot)

    async def end(self) -> None:
        """Removes the container and its folder; another one can be started."""
        self._backend.egress.close(self._socket)
        await self._container.remove()
        self._container = self._backend.container()

    async def destroy(self) -> None:
        """Removes everything."""
        await super().destroy()
        self._backend.forget(self)


def _key(spec: SandboxSpec) -> tuple[str, tuple[str, ...]]:
    """Returns what the image of a sandbox depends on."""
    return spec.image or DEFAULT_IMAGE, spec.folders_of_image


def _remove(folder: Path, lock: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)


def _capabilities(info: dict[str, Any]) -> Capabilities:
    means = f"cgroup v{info.get('CgroupVersion', '1')}"
    options = info.get("SecurityOptions") or []
    notes = []
    if not any("name=seccomp" in option and "profile=unconfined" not in option for option in options):
        notes.append("this engine applies no seccomp profile of its own")
    tcp = means != "cgroup v1" or can_limit_tcp()
    if not tcp:
        notes.append("the engine's control groups are not ours to write: memory of TCP sockets is not limited")
    filtered = filter_program() is not None
    if not filtered:
        notes.append("no libseccomp: system calls are not filtered beyond the engine's own profile")
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
        sockets=means if tcp else "none",
        note="; ".join(notes),
    )
