"""Snapshots of containers: commits, which the engine makes while it holds the container still.

Its layers keep files, owners, modes, links and whole seconds of times. (To put the rest of the times back would copy
every file up into the new container's layer, and so break its hard links.)
"""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass, replace

from agentrl.sandbox.docker_engine import Engine
from agentrl.sandbox.docker_image import Image
from agentrl.sandbox.snapshot import Snapshots

REPOSITORY = "agentrl-snapshot"
_COMMIT_S = 600.0


@dataclass(frozen=True)
class Commit:
    """What was kept of a container."""

    ref: str
    image: Image


class Commits(Snapshots[Commit]):
    """The commits of one backend.

    Args:
        labels: of the owner.
    """

    def __init__(self, engine: Engine, labels: dict[str, str]) -> None:
        super().__init__()
        self._engine, self._labels = engine, labels
        self._numbers = itertools.count(1)
        self._removing = asyncio.Lock()

    async def keep(self, container: str, parent: Image, owner: str) -> Commit:
        """Commits a container.

        Args:
            parent: the image that it was made of; what is known of that holds for the snapshot.
        """
        tag = f"{owner}-{next(self._numbers)}"
        conf = {"Labels": self._labels}
        made = await self._engine.call(lambda api: api.commit(container, REPOSITORY, tag, conf=conf), _COMMIT_S)
        return self.add(Commit(f"{REPOSITORY}:{tag}", replace(parent, id=made["Id"])))

    async def remove(self, snapshot: Commit) -> None:
        """By name: the engine keeps what later snapshots stand on, until they go.

        One after the other: of two removals at a time, each takes what both stand on, and the slower one fails.
        """
        async with self._removing:
            await self._engine.call(lambda api: api.remove_image(snapshot.ref, force=True), _COMMIT_S)
