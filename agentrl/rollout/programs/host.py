"""A program on this machine, in a folder of its own."""

from __future__ import annotations

import asyncio
import os
import signal
from asyncio.subprocess import PIPE
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from tempfile import TemporaryDirectory

from agentrl.types.errors import AgentRLError

KEPT = 1 << 16
"""Bytes of an output stream that are kept: the last ones."""

CLOSE_S = 2.0
"""How long the streams may stay open once the program has ended and its process group was killed."""


class ProgramFailed(AgentRLError):
    """The program of an agent could not do its work: a `user_error` of the episode."""


@dataclass(frozen=True)
class Ended:
    """How a program ended.

    Attributes:
        code: exit code; below 0 after a signal.
        stdout: the end of what it wrote.
        stderr: as stdout.
    """

    code: int
    stdout: bytes
    stderr: bytes


class Tail:
    """The end of a stream."""

    def __init__(self) -> None:
        self.kept = b""

    async def read(self, stream: asyncio.StreamReader) -> None:
        """Reads to the end, and keeps what fits."""
        while data := await stream.read(KEPT):
            self.kept = (self.kept + data)[-KEPT:]


async def run_on_host(command: Sequence[str], env: Mapping[str, str], stdin: bytes) -> Ended:
    """Runs a program to its end in a fresh folder. It, and its process group, are killed if this is cancelled.

    Raises:
        ProgramFailed: it cannot be started.
    """
    with TemporaryDirectory(prefix="agentrl-program-", ignore_cleanup_errors=True) as folder:
        try:
            process = await asyncio.create_subprocess_exec(
                *command, stdin=PIPE, stdout=PIPE, stderr=PIPE, cwd=folder, env={**os.environ, **env},
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise ProgramFailed(f"the program cannot be started: {error}", place="agent.program") from None
        out, err = Tail(), Tail()
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        jobs = [
            asyncio.create_task(job)
            for job in (out.read(process.stdout), err.read(process.stderr), _feed(process.stdin, stdin))
        ]
        try:
            code = await process.wait()
            _kill(process.pid)
            await asyncio.wait(jobs, timeout=CLOSE_S)
        finally:
            _kill(process.pid)
            for job in jobs:
                job.cancel()
            await asyncio.gather(process.wait(), *jobs, return_exceptions=True)
        return Ended(code, out.kept, err.kept)


def _kill(group: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


async def _feed(stdin: asyncio.StreamWriter, data: bytes) -> None:
    with suppress(ConnectionError):
        stdin.write(data)
        await stdin.drain()
    stdin.close()
