"""The `namespace` backend: Linux namespaces by bubblewrap. No daemon, no image, no root needed; starts in milliseconds.

A sandbox sees a read-only `/usr` (or a root file system of yours), private `/work` and `/tmp` in memory, its own
processes, and no network. Its user has no capability, and can make no namespaces of its own. Where agentrl runs as
root, sandboxes run as another user of the host.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
from contextlib import suppress
from typing import Any

from agentrl.sandbox.cgroups import Family, Group, Limits, found_family, reap_groups
from agentrl.sandbox.client import ToolboxSandbox
from agentrl.sandbox.contract import Capabilities, CapabilityMissing, SandboxLost, SandboxSpec, SandboxStartFailed
from agentrl.sandbox.images import REPOSITORY, built_rootfs
from agentrl.sandbox.rootfs import Host, RootFS, reap_folders
from agentrl.sandbox.wire import Wire

START_S = 30.0
"""A sandbox that has not said hello by then did not start."""

_DEFAULTS = {"memory_mb": 1024, "pids": 256, "disk_mb": 256}
"""Of a folder's size at most a quarter of the memory: there are three, and what they hold is memory."""


class NamespaceBackend:
    """Makes sandboxes out of namespaces.

    Args:
        bwrap: the bubblewrap program; default: the one on PATH.
        python: inside the sandbox; default: the system's, else the one that runs agentrl.
        cgroups: whether to limit by control group where possible; without, by rlimit.
    """

    name = "namespace"

    def __init__(self, bwrap: str = "bwrap", python: str | None = None, cgroups: bool = True) -> None:
        self._host = Host(bwrap, python)
        self._want_cgroups = cgroups
        self._family: Family | None = None
        self._known: Capabilities | None = None
        self._alive: set[NamespaceSandbox] = set()

    @property
    def capabilities(self) -> Capabilities:
        """What is enforced here."""
        if self._known is None:
            self._host.open()
            self._family = found_family(self._host.label) if self._want_cgroups else None
            means = self._family.means if self._family else "rlimit"
            notes = [] if self._family else ["no writable cgroup: memory is limited per process, not per sandbox"]
            if not self._host.filters:
                notes.append("no libseccomp: system calls are not filtered")
            if os.geteuid() == 0 and not self._host.drops:
                notes.append("sandboxes run as root's user id, without capabilities: another user was not possible")
            self._known = Capabilities(
                isolation="namespace",
                cpu=means if self._family and self._family.cpu else "none",
                memory=means,
                pids=means,
                disk="tmpfs" if self._host.sizes else "none",
                networks=("none",),
                images=True,
                rootfs=True,
                endpoints=True,
                syscalls="seccomp" if self._host.filters else "none",
                note="; ".join(notes),
            )
        return self._known

    def preflight(self, spec: SandboxSpec) -> None:
        """Refuses what cannot be enforced, see `Backend.preflight`."""
        known = self.capabilities
        wants = (
            (
                spec.image is not None and not spec.image.startswith(REPOSITORY),
                "image",
                "runs no container images but its own",
                f"image: {REPOSITORY}NAME (see agentrl sandbox build), or rootfs: a folder",
            ),
            (
                spec.image is not None and spec.rootfs is not None,
                "rootfs",
                "takes image or rootfs, not both",
                "drop one",
            ),
            (
                spec.network_kind not in known.networks,
                "network",
                "gives no network",
                "set network: none, or use docker",
            ),
            (spec.snapshots and not known.snapshots, "snapshots", "cannot snapshot", "leave it out, or use docker"),
            (spec.cpu is not None and known.cpu == "none", "cpu", "cannot limit processor time here", "leave cpu out"),
            (
                spec.memory_mb is not None and known.memory == "rlimit",
                "memory_mb",
                "cannot limit the memory of a whole sandbox here (no writable cgroup)",
                "leave memory_mb out (each process is then limited), or run where cgroups are writable",
            ),
            (
                spec.disk_mb is not None and known.disk == "none",
                "disk_mb",
                "cannot limit the size of folders with this bubblewrap",
                "install bubblewrap 0.8 or newer, or leave disk_mb out",
            ),
        )
        for wanted, key, problem, remedy in wants:
            if wanted:
                raise CapabilityMissing(f"the namespace backend {problem}", place=f"sandbox.spec.{key}", remedy=remedy)
        self._host.rootfs(_rootfs_of(spec))

    async def create(self, spec: SandboxSpec, *, label: str = "") -> NamespaceSandbox:
        """A fresh sandbox."""
        self.preflight(spec)
        sandbox = NamespaceSandbox(self, spec, label, Wire(label))
        self._alive.add(sandbox)
        try:
            await sandbox.start(self._host.rootfs(_rootfs_of(spec)), self._family)
            await sandbox.prepare()
        except OSError as error:  # the host is out of processes, descriptors or memory
            await sandbox.close()
            raise SandboxStartFailed(f"the host could not start a sandbox: {error}") from error
        except BaseException:
            await sandbox.close()
            raise
        return sandbox

    async def reap(self, *, dry: bool = False) -> list[str]:
        """Removes what killed owners left: groups with their processes, and folders."""
        return reap_groups(dry=dry) + reap_folders(dry=dry)

    async def close(self) -> None:
        """Closes every sandbox that it made."""
        await asyncio.gather(*(sandbox.close() for sandbox in list(self._alive)))
        if self._family is not None:
            self._family.close()
        self._family = self._known = None
        self._host.close()

    def forget(self, sandbox: NamespaceSandbox) -> None:
        """The sandbox is gone."""
        self._alive.discard(sandbox)


def _rootfs_of(spec: SandboxSpec) -> str | None:
    """The folder that holds the root file system; None: the host's own."""
    return spec.rootfs if spec.image is None else str(built_rootfs(spec.image))


class NamespaceSandbox(ToolboxSandbox):
    """A process tree in namespaces of its own."""

    def __init__(self, backend: NamespaceBackend, spec: SandboxSpec, label: str, wire: Wire) -> None:
        super().__init__(spec, label, wire)
        self._backend = backend
        self._process: subprocess.Popen[bytes] | None = None
        self._init_pid = 0
        self._group: Group | None = None
        self._about = self._stderr = -1
        self._socket = 0  # inode of the toolbox's end of the wire
        self._ttl: asyncio.TimerHandle | None = None

    async def start(self, rootfs: RootFS, family: Family | None) -> None:
        """Starts bubblewrap, waits for the toolbox, and puts it under its limits before it does anything.

        Raises:
            SandboxStartFailed: with what bubblewrap or the toolbox said.
        """
        loop = asyncio.get_running_loop()
        spec = self.spec
        memory, pids = spec.memory_mb or _DEFAULTS["memory_mb"], spec.pids or _DEFAULTS["pids"]
        disk = spec.disk_mb or min(_DEFAULTS["disk_mb"], memory // 4)
        rlimits = [str(pids)] if family is not None else [str(pids), str(memory << 20)]
        hello = self.wire.expect("hello")
        ours, theirs = socket.socketpair()
        self._socket = os.fstat(theirs.fileno()).st_ino
        self._about, about_w = os.pipe()  # stays open: bubblewrap that cannot write there leaves a child behind
        self._stderr, stderr_w = os.pipe()
        os.set_blocking(stderr_w, False)
        os.set_blocking(self._stderr, False)
        try:
            self._process = rootfs.start(spec, disk, about_w, theirs.fileno(), stderr_w, rlimits)
        finally:
            theirs.close()
            os.close(about_w)
            os.close(stderr_w)
        await loop.create_unix_connection(lambda: self.wire, sock=ours)
        ended = asyncio.create_task(_exited(self._process, START_S))
        try:
            either: list[asyncio.Future[Any]] = [hello, ended]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not hello.done():
                self.wire.end("bubblewrap ended" if ended.result() else f"no word within {START_S:g} s")
            await hello
        except SandboxLost:
            raise SandboxStartFailed(f"the sandbox did not come up: {self._said() or self.wire.lost}") from None
        finally:
            ended.cancel()
        # {"child-pid": N, ...}: bubblewrap wrote it before the toolbox could say hello.
        self._init_pid = int(os.read(self._about, 4096).partition(b'"child-pid":')[2].split(b",")[0].strip(b" }\n"))
        if family is not None:
            self._confine(family, memory, pids)
        self._ttl = loop.call_later(spec.ttl_s, self.wire.end, f"its ttl_s of {spec.ttl_s:g} s is over")

    def _confine(self, family: Family, memory: int, pids: int) -> None:
        try:
            self._group = family.create(Limits(memory, pids, self.spec.cpu))
            self._group.add(self._init_pid)
        except OSError as error:
            raise SandboxStartFailed(f"the sandbox cannot be put under its limits: {error}") from None

    def oom_kills(self) -> int | None:
        """Counted by the control group."""
        return self._group.oom_kills() if self._group else None

    def memory_mb(self) -> float | None:
        """Counted by the control group."""
        return self._group.memory_mb() if self._group else None

    async def destroy(self) -> None:
        """Waits until bubblewrap has seen the init die; the kernel has then killed and reaped all the rest."""
        if self._ttl is not None:
            self._ttl.cancel()
        if self._process is not None and not await _exited(self._process, 2.0):
            for pid in [self._init_pid] if self._init_pid else _children(self._process.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if not await _exited(self._process, 2.0):
                self._process.kill()
                await _exited(self._process, 10.0)
        if self._process is not None and not self._init_pid:
            await asyncio.to_thread(_kill_holders, self._socket)
        if self._group is not None:
            await _removed(self._group)
        if self._process is not None:
            os.close(self._about)
            os.close(self._stderr)
        self._backend.forget(self)

    def _said(self) -> str:
        """The end of what bubblewrap or the toolbox wrote to stderr."""
        with suppress(BlockingIOError):
            return os.read(self._stderr, 65536)[-2000:].decode("utf-8", "replace").strip()
        return ""


async def _removed(group: Group) -> None:
    """Waits until a group is gone. A bubblewrap that was killed from outside leaves its child behind, dying."""
    pause = 0.0005
    while not group.remove() and pause < 2.0:
        group.kill()
        await asyncio.sleep(pause)
        pause *= 2


async def _exited(process: subprocess.Popen[bytes], timeout_s: float) -> bool:
    """Waits, without a thread, for the end of a child; true if it came."""
    if process.poll() is not None:
        return True
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    fd = os.pidfd_open(process.pid)
    loop.add_reader(fd, over.set)
    try:
        async with asyncio.timeout(timeout_s):
            await over.wait()
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(fd)
        os.close(fd)
    return process.poll() is not None


def _kill_holders(socket: int) -> None:
    """Kills who holds a socket: the child of a bubblewrap that was killed before it had told the child to go on."""
    for folder in os.scandir("/proc"):
        with suppress(OSError):
            if folder.name.isdecimal() and int(folder.name) != os.getpid():
                held = (os.readlink(each.path) for each in os.scandir(f"{folder.path}/fd"))
                if f"socket:[{socket}]" in held:
                    os.kill(int(folder.name), signal.SIGKILL)


def _children(pid: int) -> list[int]:
    with suppress(OSError), open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(child) for child in file.read().split()]
    return []
