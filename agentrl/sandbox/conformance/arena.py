"""Fixtures of a check."""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentrl.types.sandbox import Backend, Sandbox, SandboxSpec


class Broken(Exception):
    """The backend fails a check; the text describes what it did."""


def expect(holds: object, otherwise: str) -> None:
    """Raises `Broken` unless the condition holds. (`assert` would be gone under `python -O`.)"""
    if not holds:
        raise Broken(otherwise)


@dataclass
class Arena:
    """Backend, sandboxes and host files of one check. Sandboxes and files are removed after the check.

    Attributes:
        address: name or `pkg.module:Class` by which another process opens the same backend.
        base: common spec of all sandboxes of the suite, for example the image.
    """

    backend: Backend
    address: str
    base: SandboxSpec = field(default_factory=SandboxSpec)
    _opened: list[Sandbox] = field(default_factory=list)
    _folders: list[tempfile.TemporaryDirectory[str]] = field(default_factory=list)

    def spec(self, **changes: Any) -> SandboxSpec:
        """Returns the common spec with changes."""
        return SandboxSpec(**{**self.base.model_dump(exclude_unset=True), **changes})

    async def open(self, **changes: Any) -> Sandbox:
        """Opens a sandbox; `changes` to the common spec."""
        sandbox = await self.backend.create(self.spec(**changes), label="conformance")
        self._opened.append(sandbox)
        return sandbox

    async def open_many(self, number: int, **changes: Any) -> list[Sandbox]:
        """Opens several sandboxes at the same time."""
        return list(await asyncio.gather(*(self.open(**changes) for _ in range(number))))

    def host_folder(self) -> Path:
        """Creates a folder of the host that every user of the host may enter and write."""
        folder = tempfile.TemporaryDirectory(prefix="conformance-", ignore_cleanup_errors=True)
        self._folders.append(folder)
        path = Path(folder.name)
        path.chmod(0o777)
        return path

    async def clean(self) -> None:
        """Closes the sandboxes and removes the folders."""
        opened, self._opened = self._opened, []
        await asyncio.gather(*(sandbox.close() for sandbox in opened))
        folders, self._folders = self._folders, []
        for folder in folders:
            folder.cleanup()
