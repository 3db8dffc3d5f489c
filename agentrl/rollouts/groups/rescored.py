"""Groups of a run that is being rescored. Members stay in memory until their group is complete."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from agentrl.types.episode import Episode, in_order


class RescoredGroups:
    """Groups that are being rescored.

    Args:
        store: stores a rescored episode.

    Attributes:
        failures: messages of failed scorings.
    """

    def __init__(self, store: Callable[[Episode], None]) -> None:
        self._store = store
        self._waiting: dict[str, list[Episode]] = defaultdict(list)
        self.failures: list[str] = []

    def keep(self, episode: Episode) -> None:
        """Stores a scored episode, after its group is scored if its reward depends on the group."""
        if episode.error is not None:
            self.failures.append(episode.error.message)
        if episode.pending or episode.error is not None:
            self._waiting[episode.group_id].append(episode)
        else:
            self._store(episode)

    def unscored(self, group_id: str) -> Sequence[Episode]:
        """Returns the members in order. Empty if one failed: running the same command again then scores the group."""
        members = self._waiting.pop(group_id, [])
        return [] if any(member.error is not None for member in members) else in_order(members)

    def add(self, group_id: str, members: Sequence[Episode]) -> None:
        """Stores the new scores of a group."""
        for member in members:
            self._store(member)

    def failed(self, failure: dict[str, Any]) -> None:
        """Records that a group could not be scored."""
        if failure["final"]:
            self.failures.append(failure["message"])
