"""Container of one sandbox: creation, connection of its toolbox, removal."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.sandbox.docker.create_limiter import CreateLimiter, EngineAway, EngineChoked
from agentrl.sandbox.docker.engine import ContainerEngine
from agentrl.sandbox.docker.image import UID, ContainerImage
from agentrl.sandbox.linux.bounds import ProcessBounds
from agentrl.sandbox.linux.cgroups import Cgroup
from agentrl.sandbox.toolbox.client import TOOLS, WIRE
from agentrl.sandbox.toolbox.egress import proxy_environment
from agentrl.sandbox.toolbox.postmortem import Postmortem
from agentrl.sandbox.toolbox.wire import Wire
from agentrl.types.clocks.deadline import Deadline
from agentrl.types.sandbox import SandboxLost, SandboxSpec, SandboxStartFailed

START_S = 60.0
"""Seconds until the toolbox of a started container must have said hello."""

_INODES_PER_MB = 256
_PERIOD_US = 100_000
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ContainerSpec:
    """Specification of a container.

    Attributes:
        network: the engine's network to join; `none` for none.
        labels: of the owner.
    """

    spec: SandboxSpec
    image: ContainerImage
    network: str
    labels: dict[str, str]

    def create(self, api: Any, name: str, folder: Path) -> None:
        """Creates and starts the container. `folder` is on the host, mounted at `WIRE`."""
        spec = self.spec
        argv = ["python3", "-I", "-S", "-B", "-X", "utf8", f"{TOOLS}/toolbox.pyc", f"{WIRE}/host", spec.workdir]
        small = {"HOME": spec.workdir, "USER": "agent", "LANG": "C.UTF-8", "TERM": "dumb"}
        proxy = proxy_environment() if spec.network_kind == "allow" else {}
        bounds = ProcessBounds.of(spec)
        host = api.create_host_config(
            **hardening(bounds.memory_mb, bounds.pids),
            **self._folders(folder),
            **({"cpu_period": _PERIOD_US, "cpu_quota": int(spec.cpu * _PERIOD_US)} if spec.cpu else {}),
            network_mode=self.network,
        )
        made = api.create_container(
            self.image.id,
            name=name,
            entrypoint=argv,
            command=[],
            user=f"{UID}:{UID}",
            working_dir="/",
            hostname="sandbox",
            environment=small | proxy | spec.env,
            labels=self.labels,
            host_config=host,
        )
        api.start(made["Id"])

    def _folders(self, folder: Path) -> dict[str, Any]:
        spec = self.spec
        size = ProcessBounds.of(spec).disk_mb
        bound = f"rw,exec,nosuid,nodev,size={size}m,nr_inodes={size * _INODES_PER_MB}"
        bound_own = f"{bound},uid={UID},gid={UID}"  # theirs, /tmp too: a snapshot gives it its mode back
        empty = [each for each in spec.own_folders if each not in self.image.in_place]
        writable = {"/tmp": f"{bound_own},mode=1777"} | dict.fromkeys(empty, f"{bound_own},mode=0755")
        return {
            "read_only": not self.image.in_place,
            "tmpfs": dict.fromkeys(self.image.volumes, f"{bound},mode=1777") | writable,
            "shm_size": size << 20,
            "binds": [*self.image.binds, f"{folder}:{WIRE}:ro"],
        }


def hardening(memory_mb: int, pids: int) -> dict[str, Any]:
    """Returns the settings of every container, as `create_host_config` takes them. The seccomp profile is the engine's;
    the toolbox adds the filter of all backends.

    `docker-init` is not used: the toolbox is process 1 and reaps.
    """
    return {
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "mem_limit": memory_mb << 20,
        "memswap_limit": memory_mb << 20,
        "pids_limit": pids,
        "ipc_mode": "private",
        "ulimits": [{"Name": "core", "Soft": 0, "Hard": 0}],
        "log_config": {"Type": "json-file", "Config": {"max-size": "64k", "max-file": "1"}},
    }


class Container:
    """Container that is being made, runs, or is gone.

    Args:
        name: known before the container exists, so that it can be removed at any stage.
        folder: for its socket; does not exist yet.

    Attributes:
        group: its control group; None if it is not visible from here.
    """

    def __init__(self, engine: ContainerEngine, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        self.group: Cgroup | None = None
        self._engine = engine
        self._making: asyncio.Future[None] | None = None

    async def start(self, container: ContainerSpec, limiter: CreateLimiter, wire: Wire) -> None:
        """Creates it and waits until its toolbox connects.

        Raises:
            SandboxUnavailable: the engine chokes.
            SandboxStartFailed: the engine refused, or the toolbox did not come up.
        """
        self.folder.mkdir()
        self.folder.chmod(0o755)
        hello = wire.expect("hello")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"{self.folder}/host")
            os.chmod(f"{self.folder}/host", 0o666)
            listener.listen(1)
            listener.setblocking(False)
            async with limiter.enter():
                # A thread cannot be cancelled: removal of the container waits for the call.
                call = self._engine.call(lambda api: container.create(api, self.name, self.folder))
                self._making = asyncio.ensure_future(call)
                try:
                    await asyncio.shield(self._making)
                except Exception as error:
                    if not (refused := self._engine.refused(error)):
                        raise
                    raise SandboxStartFailed(f"the container engine refused: {refused}") from None
            try:
                async with Deadline(START_S):
                    link = await self._caller(listener)
                    pid = struct.unpack("3i", link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
                    await asyncio.get_running_loop().create_unix_connection(lambda: wire, sock=link)
                    await hello
            except (TimeoutError, SandboxLost):
                raise SandboxStartFailed(f"the toolbox did not come up: {await self._said()}") from None
        os.unlink(f"{self.folder}/host")  # connected; no other process may connect
        self.group = _group_of(pid)
        if self.group is not None:
            self.group.limit_tcp(ProcessBounds.of(container.spec).memory_mb)  # the engine does not
        Postmortem(self.group, pid, self._killed_for_memory).attach(wire)

    async def _caller(self, listener: socket.socket) -> socket.socket:
        """Accepts the toolbox's connection; gives up early if the container ends."""
        accepting = asyncio.ensure_future(asyncio.get_running_loop().sock_accept(listener))
        try:
            while not (await asyncio.wait([accepting], timeout=1.0))[0]:
                about = await self._engine.call(lambda api: api.inspect_container(self.name))
                if not about["State"]["Running"] and not accepting.done():
                    raise SandboxStartFailed(f"the container ended at once: {await self._said()}")
            return accepting.result()[0]
        finally:
            accepting.cancel()

    async def _killed_for_memory(self) -> bool:
        """Returns True if the engine reports it. False if the engine forgot the container, or does not answer."""
        with suppress(Exception):
            about = await self._engine.call(lambda api: api.inspect_container(self.name))
            return bool(about["State"]["OOMKilled"]) and not about["State"]["Running"]
        return False

    async def _said(self) -> str:
        with suppress(Exception):
            said = await self._engine.call(lambda api: api.logs(self.name, tail=20))
            return said.decode("utf-8", "replace").strip() or "no message"
        return "no message"

    async def remove(self) -> None:
        """Removes it and its folder. A failed removal is retried; leftovers are removed when the backend is closed."""
        if self._making is not None:
            await asyncio.wait([self._making])
            for pause in (0.1, 0.5, 2.0, 0.0):
                try:
                    await self._engine.call(lambda api: api.remove_container(self.name, force=True, v=True))
                    break
                except EngineAway:
                    break
                except EngineChoked as error:
                    _log.warning("container %s could not be removed: %s", self.name, error.message)
                except Exception as error:
                    if self._engine.is_absent(error):
                        break
                    if not self._engine.refused(error):  # else: its removal is in progress
                        raise
                await asyncio.sleep(pause)
        await asyncio.to_thread(shutil.rmtree, self.folder, True)


def _group_of(pid: int) -> Cgroup | None:
    """Returns the control group of a process, version 1 or 2, for reading; None if it is not visible from here."""
    root, found = "/sys/fs/cgroup", dict[str, str]()
    with suppress(OSError), open(f"/proc/{pid}/cgroup") as file:
        for line in file:
            _, names, path = line.rstrip("\n").split(":", 2)
            found |= {name: f"{root}/{name}{path}" if name else f"{root}{path}" for name in names.split(",")}
    if os.path.exists(f"{found.get('memory')}/memory.oom_control"):
        return Cgroup((), found["memory"], 1, found.get("cpuacct", ""))
    if os.path.exists(f"{found.get('')}/memory.events"):
        return Cgroup((), found[""], 2)
    return None
