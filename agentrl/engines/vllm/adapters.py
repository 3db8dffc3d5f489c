"""Transfer of LoRA adapters to vLLM servers: a folder and a name for each version."""

from __future__ import annotations

import asyncio
import secrets
import shutil
import tempfile
from pathlib import Path

from agentrl.engines.vllm.transfer import shared_parent
from agentrl.types.engine import Adapter
from agentrl.types.errors import EngineError


class Shelf:
    """Folders of adapters for the servers of one engine.

    A folder exists while a request may use its adapter: a server may evict the adapter from memory and read it again.

    Args:
        parent: shared folder, for servers on other machines; default: this machine's shared memory.
    """

    def __init__(self, parent: Path | None) -> None:
        self._parent = parent
        self._root: Path | None = None
        # Servers identify adapters by name, and may outlive this engine: names must differ between engines.
        self._tag = secrets.token_hex(4)

    async def put(self, adapter: Adapter, version: int) -> str:
        """Writes an adapter. Returns its name.

        Raises:
            EngineError: the folder is full or cannot be written.
        """
        name = f"adapter-{self._tag}-{version}"
        try:
            if self._root is None:
                self._root = Path(tempfile.mkdtemp(prefix="agentrl-adapters-", dir=shared_parent(self._parent)))
                self._root.chmod(0o755)  # servers may run as another user
            await asyncio.to_thread(adapter.save, self._root / name)
        except (OSError, RuntimeError) as error:
            raise EngineError(
                f"the adapter cannot be written: {error}",
                place=str(self._parent or "shared memory"),
                remedy="set engine.weights_dir to a folder with enough space",
            ) from error
        return name

    def folder(self, name: str) -> Path:
        """The folder of an adapter."""
        assert self._root is not None
        return self._root / name

    def drop(self, name: str) -> None:
        """Removes an adapter's folder."""
        shutil.rmtree(self.folder(name), ignore_errors=True)

    def close(self) -> None:
        """Removes all folders."""
        if self._root is not None:
            shutil.rmtree(self._root, ignore_errors=True)
            self._root = None
