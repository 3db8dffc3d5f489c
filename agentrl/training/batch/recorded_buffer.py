"""Recorded groups in place of a rollout buffer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from agentrl.store.index import blobs_of
from agentrl.store.run_dir import RunDir
from agentrl.training.batch.recorded import RecordedGroups
from agentrl.training.rollout_buffer import OnGroup, RolloutBatch
from agentrl.types.episode import Episode
from agentrl.types.task import Task


class RecordedBuffer:
    """Gives each update its groups, and stores their episodes in the run that trains.

    Args:
        into: the run that trains.
        size: groups of an update.
        counts: whether an episode counts in its group.
    """

    def __init__(self, recorded: RecordedGroups, into: RunDir, size: int, counts: Callable[[Episode], bool]) -> None:
        self._recorded, self._into, self._size, self._counts = recorded, into, size, counts

    async def next_batch(self, version: int, each: OnGroup | None = None) -> RolloutBatch:
        """The groups of the update of policy `version`. `each` gets them one by one."""
        found = [self._group(ids, version) for ids in self._recorded.batch(version, self._size)]
        if each is not None:
            for group in found:
                await each(RolloutBatch.of([group], self._counts))
        return RolloutBatch.of(found, self._counts)

    def _group(self, ids: list[str], version: int) -> tuple[str, Task, list[Episode]]:
        known = self._into.ids()
        for episode in self._recorded.run.episodes([id for id in ids if id not in known]):
            for sha in blobs_of(episode):
                self._into.put_blob(self._recorded.run.get_blob(sha))
            self._into.add(msgspec.structs.replace(episode, split="train", iteration=version))
        episodes = sorted(self._into.episodes(ids), key=lambda episode: episode.id)
        return episodes[0].group_id, episodes[0].task, episodes

    def metrics(self, trained: RolloutBatch) -> dict[str, Any]:
        """`trained_groups`."""
        return {"trained_groups": [group.id for group in trained.groups]}

    def state_dict(self) -> dict[str, Any]:
        """Returns an empty state: the groups of an iteration depend only on its number."""
        return {}

    def load_state_dict(self, state: dict[str, Any], version: int) -> None:
        """Nothing to restore."""

    def resume(self) -> None:
        """Nothing to play."""
