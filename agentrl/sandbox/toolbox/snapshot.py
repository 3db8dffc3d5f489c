"""Sandboxes with snapshots, and the snapshots of a backend. The format is up to the backend."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Iterable
from typing import Any, Generic, Protocol, Self, TypeVar

from agentrl.sandbox.toolbox.client import ToolboxSandbox, no_snapshots
from agentrl.sandbox.toolbox.wire import Wire
from agentrl.types.sandbox import SandboxSpec, SandboxStartFailed


class Snapshot(Protocol):
    """Snapshot of one sandbox."""

    @property
    def ref(self) -> str:
        """Name of the snapshot."""
        ...


Kept = TypeVar("Kept", bound=Snapshot)
Fork = TypeVar("Fork", bound=ToolboxSandbox)


class Snapshots(ABC, Generic[Kept]):
    """Snapshots of one backend, by name. They are removed with it."""

    def __init__(self) -> None:
        self._kept: dict[str, Kept] = {}
        self._users: dict[str, int] = {}

    def __getitem__(self, ref: str) -> Kept:
        return self._kept[ref]

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, snapshot: Kept) -> Kept:
        """Registers a snapshot."""
        self._kept[snapshot.ref] = snapshot
        return snapshot

    @abstractmethod
    async def remove(self, snapshot: Kept) -> None:
        """Frees the storage of a snapshot."""

    async def drop(self, ref: str) -> None:
        """Removes a snapshot, if it exists."""
        if (snapshot := self._kept.pop(ref, None)) is not None:
            await self.remove(snapshot)

    async def drop_all(self) -> None:
        """Removes all."""
        await asyncio.gather(*(self.drop(ref) for ref in list(self._kept)))

    async def share(self, ref: str, launches: Iterable[Coroutine[Any, Any, Fork]]) -> list[Fork]:
        """Launches sandboxes from one snapshot, which is removed with the last of them, see `leave`.

        Raises:
            Exception: error of the first failed launch; the others are closed.
        """
        tasks = [asyncio.create_task(launch) for launch in launches]
        try:
            forks = await asyncio.gather(*tasks)
        except BaseException:
            for task in tasks:
                if not task.cancelling():  # a second cancellation would interrupt its clean-up
                    task.cancel()
            made = await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.gather(*(each.close() for each in made if not isinstance(each, BaseException)))
            await self.drop(ref)
            raise
        self._users[ref] = len(forks)
        return forks

    async def leave(self, ref: str) -> None:
        """Releases the snapshot for one of its sandboxes, which is gone."""
        if ref in self._users:
            self._users[ref] -= 1
            if not self._users[ref]:
                del self._users[ref]
                await self.drop(ref)


class SnapshotSandbox(ToolboxSandbox, Generic[Kept]):
    """Sandbox of a backend with snapshots."""

    def __init__(self, spec: SandboxSpec, label: str, snapshots: Snapshots[Kept]) -> None:
        super().__init__(spec, label, Wire(label))
        self._snapshots = snapshots
        self._expired = False
        self._origin = ""  # the snapshot that it shares with other forks
        self._remaking = asyncio.Lock()

    # To be implemented by a backend

    @abstractmethod
    async def start(self, snapshot: Kept | None) -> None:
        """Starts it: with the files of a snapshot, else empty."""

    @abstractmethod
    async def end(self) -> None:
        """Kills all processes and frees all resources; it can then be started again."""

    @abstractmethod
    async def keep(self) -> Kept:
        """Saves the files."""

    @abstractmethod
    async def launch(self, label: str, snapshot: Kept) -> Self:
        """Starts another sandbox of this spec, with the files of a snapshot."""

    # The contract

    async def snapshot(self) -> str:
        """Saves the files until the backend is closed, see `Sandbox.snapshot`."""
        return (await self._keep()).ref

    async def restore(self, ref: str) -> None:
        """Ends all processes, and starts again with the files of a snapshot, see `Sandbox.restore`."""
        self._check_asked_for()
        snapshot = self._snapshots[ref]
        try:
            async with self._remaking:
                if self._closing is not None:
                    raise self.wire.loss()
                self.wire.end("it was restored")
                await self.end()
                self.wire, self._oom_seen = Wire(self.label), 0
                self._sessions.clear()
                self._check_not_over()
                await self.start(snapshot)
        except OSError as error:  # the host is out of processes, descriptors or memory
            await self.close()
            raise SandboxStartFailed(f"the host could not restore a sandbox: {error}") from error
        except BaseException:
            await self.close()
            raise

    async def fork(self, number: int) -> list[Self]:
        """Creates sandboxes with the files of this one, see `Sandbox.fork`."""
        if number < 1:
            raise ValueError(f"a fork makes one sandbox or more, not {number}")
        snapshot = await self._keep()
        launches = (self.launch(f"{self.label}.{n}", snapshot) for n in range(number))
        forks = await self._snapshots.share(snapshot.ref, launches)
        for each in forks:
            each._origin = snapshot.ref
        return forks

    def _expire(self) -> None:
        self._expired = True
        super()._expire()

    def _check_not_over(self) -> None:
        """Refuses to restart a sandbox that was closed or that exceeded `ttl_s`: nothing would stop it again."""
        if self._closing is not None:
            self.wire.end("it was closed")
        if self._expired:
            self._expire()
        if self.wire.lost:
            raise self.wire.loss()

    async def destroy(self) -> None:
        """Kills all processes and frees all resources."""
        async with self._remaking:
            await self.end()
        await self._snapshots.leave(self._origin)

    async def _keep(self) -> Kept:
        self._check_asked_for()
        if self.wire.lost:
            raise self.wire.loss()
        return await self.keep()

    def _check_asked_for(self) -> None:
        if not self.spec.snapshots:
            raise no_snapshots()
