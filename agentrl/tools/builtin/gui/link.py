"""Byte streams to and from a driver program, on this machine or in a sandbox."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
from pathlib import Path
from typing import Protocol

from agentrl.types.errors import SandboxError
from agentrl.types.lifeline import Lifeline
from agentrl.types.sandbox import Process, Sandbox


class Link(Protocol):
    """Connection to a program that answers requests."""

    async def send(self, data: bytes) -> None:
        """Writes bytes. Raises OSError if the program has ended."""
        ...

    async def receive(self) -> bytes:
        """Reads some bytes; empty at the end."""
        ...

    async def last_words(self) -> str:
        """Returns text that the program wrote to stderr."""
        ...

    async def close(self) -> None:
        """Ends the program and all processes that it started."""
        ...


class HostLink:
    """Program on this machine. It and its processes end with this one.

    It is not bound to an event loop, so that it can serve episodes of several loops.
    """

    def __init__(self, argv: list[str], log: str) -> None:
        self._socket, theirs = socket.socketpair()
        self._socket.setblocking(False)
        self._log = Path(log)
        with theirs, self._log.open("wb") as log_file, Lifeline() as self._lifeline:
            self._process = subprocess.Popen(
                [*self._lifeline.guard, *argv], stdin=theirs.fileno(), stdout=theirs.fileno(), stderr=log_file,
                start_new_session=True, pass_fds=self._lifeline.pass_fds,
            )  # fmt: skip

    async def send(self, data: bytes) -> None:
        """Writes bytes. Raises OSError if the program has ended."""
        await asyncio.get_running_loop().sock_sendall(self._socket, data)

    async def receive(self) -> bytes:
        """Reads some bytes; empty at the end."""
        return await asyncio.get_running_loop().sock_recv(self._socket, 1 << 20)

    async def last_words(self) -> str:
        """Returns the end of its stderr."""
        return await asyncio.to_thread(lambda: self._log.read_bytes()[-400:].decode("utf-8", "replace"))

    async def close(self) -> None:
        """Closes its stdin, waits up to 2 s for cleanup, and kills it and its processes."""
        self._socket.close()
        for _ in range(100):
            if self._process.poll() is not None:
                break
            await asyncio.sleep(0.02)
        self._lifeline.close()
        await asyncio.to_thread(self._process.wait)


class SandboxLink:
    """Program in a sandbox; it ends with the sandbox at the latest."""

    def __init__(self, process: Process) -> None:
        self._process = process

    @classmethod
    async def open(cls, sandbox: Sandbox, argv: list[str]) -> SandboxLink:
        """Starts the program.

        Raises:
            OSError, SandboxLost: the program does not start.
        """
        return cls(await sandbox.spawn(argv))

    async def send(self, data: bytes) -> None:
        """Writes bytes. Raises OSError if the program has ended."""
        await self._process.write(data)

    async def receive(self) -> bytes:
        """Reads some bytes; empty at the end."""
        return await self._process.read("stdout", 1 << 20)

    async def last_words(self) -> str:
        """Returns the end of the first read of its stderr."""
        return (await self._process.read("stderr"))[-400:].decode("utf-8", "replace")

    async def close(self) -> None:
        """Closes its stdin; the sandbox ends the rest."""
        with contextlib.suppress(OSError, SandboxError):
            await self._process.close_stdin()
