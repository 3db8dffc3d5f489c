"""Snapshots of containers: commits, which the engine makes while it holds the container still.

Its layers keep files, owners, modes, links and whole seconds of times. (To put the rest of the times back would copy
every file up into the new container's layer, and so break its hard links.)
"""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass, field, replace

from agentrl.sandbox.docker_engine import Engine
from agentrl.sandbox.docker_image import Image

REPOSITORY = "agentrl-snapshot"
_COMMIT_S = 600.0


@dataclass(frozen=True)
class Snapshot:
    """What was kept of a container."""

    ref: str
    image: Image


@dataclass
class Snapshots:
    """The snapshots of one backend, by name. They go with it.

    Attributes:
        labels: of the owner.
    """

    engine: Engine
    labels: dict[str, str]
    _kept: dict[str, Snapshot] = field(default_factory=dict)
    _users: dict[str, int] = field(default_factory=dict)
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    _dropping: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __getitem__(self, ref: str) -> Snapshot:
        return self._kept[ref]

    def __len__(self) -> int:
        return len(self._kept)

    async def keep(self, container: str, parent: Image, owner: str) -> Snapshot:
        """Commits a container.

        Args:
            parent: the image that it was made of; what is known of that holds for the snapshot.
        """
        tag = f"{owner}-{next(self._numbers)}"
        conf = {"Labels": self.labels}
        made = await self.engine.call(lambda api: api.commit(container, REPOSITORY, tag, conf=conf), _COMMIT_S)
        snapshot = Snapshot(f"{REPOSITORY}:{tag}", replace(parent, id=made["Id"]))
        self._kept[snapshot.ref] = snapshot
        return snapshot

    async def drop(self, ref: str) -> None:
        """Removes one. By name: the engine keeps what later snapshots stand on, until they go.

        One after the other: of two removals at a time, each takes what both stand on, and the slower one fails.
        """
        async with self._dropping:
            if self._kept.pop(ref, None) is not None:
                await self.engine.call(lambda api: api.remove_image(ref, force=True), _COMMIT_S)

    async def drop_all(self) -> None:
        """Removes all."""
        await asyncio.gather(*(self.drop(ref) for ref in list(self._kept)))

    def share(self, ref: str, users: int) -> None:
        """This one is dropped when so many sandboxes that came of it are gone."""
        self._users[ref] = users

    async def leave(self, ref: str) -> None:
        """A sandbox that shared it is gone."""
        if ref in self._users:
            self._users[ref] -= 1
            if not self._users[ref]:
                del self._users[ref]
                await self.drop(ref)
