"""Snapshots as archives of the writable folders of a sandbox, made and read inside (`/tools/snapshot`).

An archive lies in the backend's folder on the host and is opaque there: data that programs of a sandbox can write must
only be unpacked by another sandbox.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from agentrl.sandbox.toolbox.client import TOOLS, ToolboxSandbox
from agentrl.sandbox.toolbox.process import ToolboxProcess
from agentrl.sandbox.toolbox.snapshot import Snapshots
from agentrl.types.sandbox import ExecResult, SandboxLost, SandboxStartFailed

_CHUNK = 1 << 20
_END_S = 60.0
"""Maximum of seconds between the last data of a program and its end."""


@dataclass(frozen=True)
class Archive:
    """Saved files of a sandbox."""

    ref: str
    path: Path


class Archives(Snapshots[Archive]):
    """The archives of one backend.

    Args:
        owner: the label that makes their names unique.
    """

    def __init__(self, owner: str) -> None:
        super().__init__()
        self._owner = owner
        self._numbers = itertools.count(1)

    async def keep(self, sandbox: ToolboxSandbox, python: str, place: Path, most_mb: int) -> Archive:
        """Packs the files of a sandbox.

        Args:
            python: the interpreter inside.
            place: the backend's folder.
            most_mb: larger one of the limits on memory and folders. A regular archive is at most twice this size.

        Raises:
            OSError: a file cannot be saved, or the host's disk is full.
        """
        name = f"snapshot-{next(self._numbers)}"
        archive = Archive(f"{self._owner}-{name}", place / name)
        packer: ToolboxProcess | None = None
        limit = 2 * most_mb << 20
        try:
            packer = await sandbox.spawn(_command(python, "pack", *_folders(sandbox)), cwd="/")
            kept = 0
            with await asyncio.to_thread(_new, archive.path) as file:
                while data := await packer.read(size=_CHUNK):
                    kept += len(data)
                    if kept > limit:
                        raise OSError(f"the files of the sandbox are more than {limit >> 20} MiB")
                    await asyncio.to_thread(file.write, data)
            result = await packer.wait(_END_S)
            if result is None or not result.ok:
                raise OSError(f"the files of the sandbox cannot be kept: {await _said(packer, result)}")
        except BaseException:
            archive.path.unlink(missing_ok=True)
            with suppress(SandboxLost):
                if packer is not None:
                    await packer.kill()
                await sandbox.exec(_command(python, "release"), cwd="/")
            raise
        finally:
            if packer is not None:
                packer.drop()
        return self.add(archive)

    async def put_back(self, sandbox: ToolboxSandbox, python: str, archive: Archive) -> None:
        """Unpacks the files of an archive in an empty sandbox.

        Raises:
            SandboxStartFailed: they do not fit, or cannot be written.
        """
        unpacker = await sandbox.spawn(_command(python, "unpack", *_folders(sandbox)), cwd="/")
        with await asyncio.to_thread(archive.path.open, "rb") as file, suppress(BrokenPipeError):  # see stderr
            while data := await asyncio.to_thread(file.read, _CHUNK):
                await unpacker.write(data)
        await unpacker.close_stdin()
        result = await unpacker.wait(_END_S)
        if result is None or not result.ok:
            raise SandboxStartFailed(f"the files cannot be put back: {await _said(unpacker, result)}")
        unpacker.drop()

    async def remove(self, snapshot: Archive) -> None:
        """Deletes the file."""
        snapshot.path.unlink(missing_ok=True)


def _new(path: Path) -> BinaryIO:
    """Creates a file that only we can read."""
    return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb")


def _folders(sandbox: ToolboxSandbox) -> list[str]:
    """Returns the folders to save. Shared memory is left out: it belongs to processes, which are not restored."""
    return list(dict.fromkeys(map(os.path.normpath, (*sandbox.spec.own_folders, "/tmp"))))


def _command(python: str, *words: str) -> Sequence[str]:
    return [python, "-I", "-S", "-B", "-X", "utf8", f"{TOOLS}/archive.pyc", *words]


async def _said(program: ToolboxProcess, result: ExecResult | None) -> str:
    if result is None:
        return f"no end within {_END_S:g} s"
    said = (await program.read("stderr")).decode("utf-8", "replace").strip()
    return said or f"it ended with {result.outcome}, code {result.code}"
