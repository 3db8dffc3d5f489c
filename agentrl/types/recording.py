"""Recording of one episode: the only place that collects its turns, branches and tokens.

Conversations of this process and requests of programs (`agentrl/proxy`) record here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import msgspec

from agentrl.types.episode import Branch, Drift, Node, Turn, TurnDraft
from agentrl.types.trajectory import Trajectory


class Recording:
    """Tokens, turns and forks of an episode.

    A turn is a draft until the recording is finished. Its index is its number in the order in which turns began, which
    has gaps where a turn failed or was dropped. The record counts without gaps.

    Attributes:
        trajectory: the tokens.
    """

    def __init__(self, nodes: Iterable[Node] = ()) -> None:
        self.trajectory = Trajectory(nodes)
        self._drafts: dict[int, TurnDraft] = {}
        self._forks: dict[int, Drift | Branch] = {}
        self._finished: list[Turn] | None = None

    def __len__(self) -> int:
        """Number of turns."""
        return len(self._drafts)

    def place(self, turn: TurnDraft, fork: Drift | Branch | None = None) -> None:
        """Adds a turn, and the fork at its prompt, if any. `Drift.turn` and `Branch.turn` are set here."""
        self._drafts[turn.index] = turn
        if fork is not None:
            self._forks[turn.index] = fork

    def drop(self, lost: Collection[int]) -> None:
        """Removes turns, by index, with their replies' tokens. No later turn may continue them."""
        nodes, moved = self.trajectory.without({self._drafts[index].node for index in lost})
        self.trajectory = Trajectory(nodes)
        for index in lost:
            del self._drafts[index]
            self._forks.pop(index, None)
        for draft in self._drafts.values():
            draft.node = moved[draft.node]

    def finish(self) -> None:
        """Freezes the turns, once. Later changes of the drafts are not part of the record."""
        self._finished = self.turns

    @property
    def drafts(self) -> list[TurnDraft]:
        """Turns in the order in which they began."""
        return [self._drafts[index] for index in sorted(self._drafts)]

    @property
    def turns(self) -> list[Turn]:
        """Turns as they are now, in the same order, and numbered by it."""
        if self._finished is not None:
            return [*self._finished]
        return [draft.frozen(k) for k, draft in enumerate(self.drafts)]

    def fields(self) -> dict[str, Any]:
        """Returns the recorded fields of an episode."""
        numbers = {index: k for k, index in enumerate(sorted(self._drafts))}
        forks = [
            msgspec.structs.replace(self._forks[index], turn=numbers[index])
            for index in sorted(self._forks.keys() & numbers)
        ]
        return {
            "nodes": [*self.trajectory.nodes],
            "turns": self.turns,
            "drift": [fork for fork in forks if isinstance(fork, Drift)],
            "branches": [fork for fork in forks if isinstance(fork, Branch)],
        }
