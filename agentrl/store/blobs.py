"""The blobs of a run: long outputs, each stored once under its SHA-256."""

from __future__ import annotations

import hashlib
from collections.abc import Container
from pathlib import Path

from agentrl.store.info import replace
from agentrl.types.errors import StoreError


class Blobs:
    """A folder of blobs: `ab/ab12...`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, data: bytes) -> str:
        """Stores bytes. Returns their SHA-256."""
        sha = hashlib.sha256(data).hexdigest()
        path = self._path(sha)
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            replace(path, data, durable=False)
        return sha

    def get(self, sha: str) -> bytes:
        """The bytes of a blob.

        Raises:
            StoreError: it is missing.
        """
        path = self._path(sha)
        if not path.exists():
            run = self._folder.parent
            raise StoreError(f"no blob {sha}", place=str(run), remedy="`agentrl check RUN` lists what is missing")
        return path.read_bytes()

    def sweep(self, named: Container[str]) -> None:
        """Deletes all blobs except those in `named`."""
        for path in self._folder.glob("*/*"):
            if path.name not in named:
                path.unlink()

    def _path(self, sha: str) -> Path:
        return self._folder / sha[:2] / sha
