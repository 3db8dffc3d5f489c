"""Process tree of one namespace sandbox: start, limits, end."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

from agentrl.sandbox.linux.bounds import ProcessBounds
from agentrl.sandbox.linux.cgroups import Cgroup, CgroupFamily, CgroupLimits
from agentrl.sandbox.namespace.rootfs import OwnCopies, RootFS
from agentrl.sandbox.toolbox.postmortem import Postmortem
from agentrl.sandbox.toolbox.wire import Wire
from agentrl.types.clocks.deadline import Deadline
from agentrl.types.sandbox import SandboxLost, SandboxSpec, SandboxStartFailed

START_S = 30.0
"""Seconds until the toolbox of a started sandbox must have said hello."""


class ProcessTree:
    """Bubblewrap, the toolbox below it, and all its processes.

    Attributes:
        init_pid: of the toolbox, on the host; 0 until known.
        group: its control group, if groups are available.
    """

    def __init__(self) -> None:
        self.init_pid = 0
        self.group: Cgroup | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._about = self._stderr = -1
        self._socket = 0  # inode of the toolbox's end of the wire

    async def start(
        self,
        rootfs: RootFS,
        spec: SandboxSpec,
        family: CgroupFamily | None,
        wire: Wire,
        egress_folder: Path | None,
        held: OwnCopies,
    ) -> None:
        """Starts bubblewrap, waits for the toolbox, and puts it under its limits before it does anything.

        Args:
            egress_folder: folder of the host that holds the egress proxy's socket, see `RootFS.start`.
            held: own folders that begin with files of the image.

        Raises:
            SandboxStartFailed: with the output of bubblewrap or the toolbox.
        """
        bounds = ProcessBounds.of(spec)
        rlimits = [str(bounds.pids)] if family is not None else [str(bounds.pids), str(bounds.memory_mb << 20)]
        hello = wire.expect("hello")
        ours, theirs = socket.socketpair()
        self._socket = os.fstat(theirs.fileno()).st_ino
        self._about, about_w = os.pipe()  # stays open: bubblewrap that cannot write there leaves a child behind
        self._stderr, stderr_w = os.pipe()
        os.set_blocking(stderr_w, False)
        os.set_blocking(self._stderr, False)
        try:
            fds = about_w, theirs.fileno(), stderr_w
            self._process = rootfs.start(spec, bounds.disk_mb, *fds, rlimits, egress_folder, held)
        finally:
            theirs.close()
            os.close(about_w)
            os.close(stderr_w)
        await asyncio.get_running_loop().create_unix_connection(lambda: wire, sock=ours)
        ended = asyncio.create_task(_exited(self._process, START_S))
        try:
            either: list[asyncio.Future[Any]] = [hello, ended]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not hello.done():
                wire.end("bubblewrap ended" if ended.result() else f"no word within {START_S:g} s")
            await hello
        except SandboxLost:
            raise SandboxStartFailed(f"the sandbox did not come up: {self._said() or wire.lost}") from None
        finally:
            ended.cancel()
        # {"child-pid": N, ...}: bubblewrap wrote it before the toolbox could say hello.
        self.init_pid = int(os.read(self._about, 4096).partition(b'"child-pid":')[2].split(b",")[0].strip(b" }\n"))
        if family is not None:
            self._confine(family, CgroupLimits(bounds.memory_mb, bounds.pids, spec.cpu))
        Postmortem(self.group, self.init_pid).attach(wire)

    def _confine(self, family: CgroupFamily, limits: CgroupLimits) -> None:
        try:
            self.group = family.create(limits)
            self.group.add(self.init_pid)
        except OSError as error:
            raise SandboxStartFailed(f"the sandbox cannot be put under its limits: {error}") from None

    async def remove(self) -> None:
        """Waits until bubblewrap has seen the init die; the kernel has then killed and reaped all others."""
        if self._process is not None and not await _exited(self._process, 2.0):
            for pid in [self.init_pid] if self.init_pid else _children(self._process.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if not await _exited(self._process, 2.0):
                self._process.kill()
                await _exited(self._process, 10.0)
        if self._process is not None and not self.init_pid:
            await asyncio.to_thread(_kill_holders, self._socket)
        if self.group is not None:
            await _removed(self.group)
        for fd in (self._about, self._stderr):
            if fd >= 0:
                os.close(fd)

    def _said(self) -> str:
        """Returns the end of the stderr of bubblewrap and the toolbox."""
        with suppress(BlockingIOError):
            return os.read(self._stderr, 65536)[-2000:].decode("utf-8", "replace").strip()
        return ""


async def _removed(group: Cgroup) -> None:
    """Waits until a group is gone. A bubblewrap killed from outside leaves a dying child behind."""
    pause = 0.0005
    while not group.remove() and pause < 2.0:
        group.kill()
        await asyncio.sleep(pause)
        pause *= 2


async def _exited(process: subprocess.Popen[bytes], timeout_s: float) -> bool:
    """Waits, without a thread, for the end of a child; True if it ended."""
    if process.poll() is not None:
        return True
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    fd = os.pidfd_open(process.pid)
    loop.add_reader(fd, over.set)
    try:
        async with Deadline(timeout_s):
            await over.wait()
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(fd)
        os.close(fd)
    return process.poll() is not None


def _kill_holders(socket: int) -> None:
    """Kills the holders of a socket: the child of a bubblewrap that was killed before it had let the child continue."""
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
