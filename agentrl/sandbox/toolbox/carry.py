"""Copies files into and out of a sandbox in chunks: `carry.py` of the toolbox runs at both ends, see there.

Both ends are separate processes: bytes that a program of a sandbox may have forged are unpacked by a process that a
deadline or a cancelled call can end, and at most a chunk of them is in memory.
"""

from __future__ import annotations

import asyncio
import errno
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Protocol

from agentrl.sandbox.toolbox.process import ToolboxProcess
from agentrl.types.clocks.deadline import Deadline
from agentrl.types.paths import data_path
from agentrl.types.sandbox import ExecResult, SandboxLost, SandboxUnavailable
from agentrl.types.stdlib import piped


class Carrier(Protocol):
    """Sandbox that packs and unpacks files."""

    async def carry(self, words: Sequence[str]) -> ToolboxProcess:
        """Starts the toolbox's program that packs and unpacks files. Raises OSError if it cannot be started."""
        ...


DEADLINE_S = 300.0
_CHUNK = 1 << 18
_END_S = 30.0
"""Maximum of seconds between the last data of a program and its end."""
_HERE_FAILED = 1  # exit code of an end that failed because of its machine


async def fetch(sandbox: Carrier, path: str, target: Path) -> None:
    """Copies a file or the content of a folder of a sandbox into a folder of the host, see `Sandbox.get`."""
    async with (
        _deadline(path),
        _inside(sandbox, "pack", path, "bounded") as packer,
        _here("unpack", str(target), "bounded") as unpacker,
    ):
        entry, refused = piped(unpacker.stdin), False
        try:
            while data := await packer.read(size=_CHUNK):
                entry.write(data)
                await entry.drain()
        except (BrokenPipeError, ConnectionResetError):  # its stderr has the reason
            refused = True
        entry.close()
        if not refused:
            await _check(packer, path)
        code, error = await _verdict(unpacker, path)
        if code == _HERE_FAILED:
            raise SandboxUnavailable(
                f"what a sandbox gave cannot be written: {error.strerror}",
                place=str(target),
                remedy="free some space there, or give a folder that can be written",
            )
        if code != 0:
            raise error


async def send(sandbox: Carrier, source: Path, path: str) -> None:
    """Copies a file, or the content of a folder, of the host into a folder of a sandbox, see `Sandbox.put`."""
    async with _deadline(path), _here("pack", str(source)) as packer, _inside(sandbox, "unpack", path) as unpacker:
        packed = piped(packer.stdout)
        with suppress(BrokenPipeError):  # its stderr has the reason
            while data := await packed.read(_CHUNK):
                await unpacker.write(data)
            code, error = await _verdict(packer, str(source))
            if code != 0:
                raise error
        await unpacker.close_stdin()
        await _check(unpacker, path)


@asynccontextmanager
async def _deadline(path: str) -> AsyncIterator[None]:
    try:
        async with Deadline(DEADLINE_S):
            yield
    except TimeoutError:
        raise OSError(errno.ETIMEDOUT, f"not carried within {DEADLINE_S:g} s", path) from None


@asynccontextmanager
async def _inside(sandbox: Carrier, *words: str) -> AsyncIterator[ToolboxProcess]:
    process = await sandbox.carry(words)
    try:
        yield process
    finally:
        with suppress(SandboxLost):
            await process.kill()
        process.drop()


@asynccontextmanager
async def _here(*words: str) -> AsyncIterator[asyncio.subprocess.Process]:
    argv = [sys.executable, "-I", "-S", "-B", "-X", "utf8", str(data_path("tools", "toolbox", "carry.py")), *words]
    try:
        process = await asyncio.create_subprocess_exec(*argv, stdin=PIPE, stdout=PIPE, stderr=PIPE)
    except OSError as error:
        remedy = "fewer sandboxes at a time, or more processes and descriptors: see `ulimit -a`"
        raise SandboxUnavailable(f"no process can be started here: {error.strerror}", remedy=remedy) from error
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.communicate()  # `wait` would never end with unread output


async def _check(process: ToolboxProcess, path: str) -> None:
    """Raises OSError if the end inside failed."""
    result: ExecResult | None = await process.wait(_END_S)
    if result is None:
        raise OSError(errno.ETIMEDOUT, "the program that carries it does not end", path)
    if not result.ok:
        said = await process.read("stderr")
        raise _error(said, f"the program that carries it ended with {result.outcome}, code {result.code}", path)


async def _verdict(process: asyncio.subprocess.Process, path: str) -> tuple[int, OSError]:
    """Returns the exit code of the end on the host, and the error that it reported, if any."""
    said = await piped(process.stderr).read()
    code = await process.wait()
    return code, _error(said, f"the program that carries it ended with code {code}", path)


def _error(said: bytes, otherwise: str, path: str) -> OSError:
    number, _, text = said.decode("utf-8", "replace").partition(" ")
    return OSError(int(number), text, path) if number.isascii() and number.isdigit() else OSError(5, otherwise, path)
