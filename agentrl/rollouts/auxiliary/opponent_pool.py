"""Past versions of the policy as opponents: `checkpoint: {every: N, last: K}`.

The training saves a checkpoint after every N updates, and each group of episodes plays against one of the last K. The
choice depends on the run's seed, the group and the updates so far, so that a resumed run chooses the same again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

from agentrl.config.agent import EarlierSelves
from agentrl.rollouts.conversation.policies import EpisodePolicy, without_training
from agentrl.types.closing import close_all
from agentrl.types.seeds import derive_seed

OpenVoice = Callable[[Path], Awaitable[EpisodePolicy]]


class OpponentPool:
    """Opponent pool: past versions of one training's policy. Each active one has an engine in this process.

    Args:
        name: of the auxiliary policy.
        seed: of the run.
        open: opens a checkpoint as an auxiliary policy.
    """

    def __init__(self, name: str, settings: EarlierSelves, seed: int, open: OpenVoice) -> None:
        self._name, self._settings, self._seed, self._open = name, settings, seed, open
        self._folder: Callable[[int], Path] | None = None
        self._iteration = 0
        self._speakers: dict[int, EpisodePolicy] = {}
        self._playing = Counter[int | None]()
        self._opening = asyncio.Lock()

    @property
    def ready(self) -> bool:
        """True if a training has begun."""
        return self._folder is not None

    def follow(self, folder: Callable[[int], Path]) -> None:
        """Connects a training: `folder` returns the checkpoint after an update."""
        self._folder = folder

    async def turn_to(self, iteration: int) -> None:
        """Sets the number of updates. Versions that no episode will choose again are closed."""
        self._iteration = iteration
        kept = {*self._settings.at(iteration), *(version for version, count in self._playing.items() if count)}
        for version in self._speakers.keys() - kept:
            await close_all(self._speakers.pop(version).engine)

    async def chosen(self, group: str, iteration: int | None) -> EpisodePolicy:
        """Chooses one of the last versions, all equally likely; the same for all episodes of a group.

        Raises:
            RecipeError: no training has begun.
        """
        if self._folder is None:
            raise without_training(self._name)
        among = self._settings.at(self._iteration if iteration is None else iteration)
        version = among[derive_seed(self._seed, "league", self._name, group) % len(among)]
        self._playing[version] += 1
        try:
            async with self._opening:
                if version not in self._speakers:
                    self._speakers[version] = replace(await self._open(self._folder(version)), version=version)
        except BaseException:
            self._playing[version] -= 1
            raise
        return self._speakers[version]

    def release(self, speaker: EpisodePolicy) -> None:
        """Releases it after an episode."""
        self._playing[speaker.version] -= 1

    async def close(self) -> None:
        """Closes all engines."""
        await close_all(*(speaker.engine for speaker in self._speakers.values()))
