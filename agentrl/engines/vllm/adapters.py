"""LoRA adapters on their way to vLLM servers: a folder and a name for each version."""

from __future__ import annotations

import asyncio
import secrets
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from agentrl.engines.vllm.transfer import shared_parent
from agentrl.types.errors import EngineError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Adapter:
    """What `update` of an engine that `takes_adapters` is given in place of all weights.

    Attributes:
        save: writes it into a folder, in peft's format.
        base: the weights that it was trained on, in the checkpoint's names; asked for only if a server holds others.
    """

    save: Callable[[Path], None]
    base: Callable[[], Awaitable[Mapping[str, Tensor]]]


class NoAdapters(EngineError):
    """The servers take no adapters, or not this one: send merged weights."""


class Shelf:
    """The folders that the servers of one engine read adapters from. Each stays as long as a request may run under its
    adapter: a server may drop an adapter from its memory meanwhile, and reads it again.

    Args:
        parent: a shared folder, for servers on other machines; default: in this machine's shared memory.
    """

    def __init__(self, parent: Path | None) -> None:
        self._parent = parent
        self._root: Path | None = None
        # Servers know adapters by name, and outlive engines: another engine must not get this one's.
        self._tag = secrets.token_hex(4)

    async def put(self, adapter: Adapter, version: int) -> str:
        """Writes an adapter; its name.

        Raises:
            EngineError: the folder is full or cannot be written.
        """
        name = f"adapter-{self._tag}-{version}"
        try:
            if self._root is None:
                self._root = Path(tempfile.mkdtemp(prefix="agentrl-adapters-", dir=shared_parent(self._parent)))
                self._root.chmod(0o755)  # servers may run as somebody else
            await asyncio.to_thread(adapter.save, self._root / name)
        except (OSError, RuntimeError) as error:
            raise EngineError(
                f"the adapter cannot be written: {error}",
                place=str(self._parent or "shared memory"),
                remedy="engine.weights_dir names a folder that has the room",
            ) from error
        return name

    def folder(self, name: str) -> Path:
        """Where an adapter lies."""
        assert self._root is not None
        return self._root / name

    def drop(self, name: str) -> None:
        """Removes an adapter's folder."""
        shutil.rmtree(self.folder(name), ignore_errors=True)

    def close(self) -> None:
        """Removes all of them."""
        if self._root is not None:
            shutil.rmtree(self._root, ignore_errors=True)
            self._root = None
