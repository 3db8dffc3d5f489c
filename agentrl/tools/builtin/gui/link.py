"""Lines and bytes to and from a driver program, on this machine or in a sandbox."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
from pathlib import Path
from typing import Protocol

from agentrl.types.errors import SandboxError
from agentrl.types.sandbox import Process, Sandbox


class Link(Protocol):
    """A program that answers requests."""

    async def send(self, data: bytes) -> None:
        """Raises OSError if nobody reads."""
        ...

    async def receive(self) -> bytes:
        """Some bytes; empty at the end."""
        ...

    async def last_words(self) -> str:
        """What it wrote to stderr."""
        ...

    async def close(self) -> None:
        """Ends the program and everything that it started."""
        ...


class HostLink:
    """A program of this machine. It ends when its stdin does, which this process's end is, too.

    It belongs to no event loop, so that it may serve episodes of several.
    """

    def __init__(self, argv: list[str], log: str) -> None:
        self._socket, theirs = socket.socketpair()
        self._socket.setblocking(False)
        self._log = Path(log)
        with theirs, self._log.open("wb") as log_file:
            self._process = subprocess.Popen(
                argv, stdin=theirs.fileno(), stdout=theirs.fileno(), stderr=log_file, start_new_session=True
            )

    async def send(self, data: bytes) -> None:
        """Raises OSError if nobody reads."""
        await asyncio.get_running_loop().sock_sendall(self._socket, data)

    async def receive(self) -> bytes:
        """Some bytes; empty at the end."""
        return await asyncio.get_running_loop().sock_recv(self._socket, 1 << 20)

    async def last_words(self) -> str:
        """The end of its stderr."""
        return await asyncio.to_thread(lambda: self._log.read_bytes()[-400:].decode("utf-8", "replace"))

    async def close(self) -> None:
        """Ends its stdin, waits a moment for it to clean up, and kills what is left of its session."""
        self._socket.close()
        for _ in range(100):
            if self._process.poll() is not None:
                break
            await asyncio.sleep(0.02)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class SandboxLink:
    """A program of a sandbox, which ends with it at the latest."""

    def __init__(self, process: Process) -> None:
        self._process = process

    @classmethod
    async def open(cls, sandbox: Sandbox, argv: list[str]) -> SandboxLink:
        """Starts it.

        Raises:
            OSError, SandboxLost: it does not start.
        """
        return cls(await sandbox.spawn(argv))

    async def send(self, data: bytes) -> None:
        """Raises OSError if nobody reads."""
        await self._process.write(data)

    async def receive(self) -> bytes:
        """Some bytes; empty at the end."""
        return await self._process.read("stdout", 1 << 20)

    async def last_words(self) -> str:
        """The beginning of its stderr."""
        return (await self._process.read("stderr"))[-400:].decode("utf-8", "replace")

    async def close(self) -> None:
        """Ends its stdin; the sandbox ends the rest."""
        with contextlib.suppress(OSError, SandboxError):
            await self._process.close_stdin()
