"""Seats: parts of an episode (roles, contexts) with separate rewards, which are credited separately."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from agentrl.estimators.arrays import Floats, Ints
from agentrl.types.episode import Episode, Turn


@dataclass(frozen=True)
class Seats:
    """The seat of each turn of a table, and its outcome.

    Attributes:
        names: of the roles; `role` is an index into them.
        seat: equal numbers, equal seat, within a trajectory [n_turns].
        role: role of the seat, which is compared only with the same role; -1: with the whole group [n_turns].
        score: outcome of the turn's seat [n_turns].
        own: True if a seat has another outcome than the episode.
    """

    names: list[str]
    seat: Ints
    role: Ints
    score: Floats
    own: bool


def seats_of(episodes: Sequence[Episode]) -> Seats | None:
    """Returns the seats of the policy's turns; None if no episode has several.

    The members of a group are split by role if one of them has several roles of the policy, and either contexts with
    separate outcomes (`context.score`) or turn rewards. Otherwise all roles share the rewards, and stay one trajectory.
    """
    parted = {episode.group_id for episode in episodes if _several(episode)}
    if not parted:
        return None
    names: dict[str, int] = {}
    seat, role, score, numbers = [], [], [], dict[tuple[str, str], int]()
    own = False
    for episode in episodes:
        for turn in episode.own_turns:
            apart = episode.group_id in parted
            scored = apart and _scored(episode, turn)
            own |= scored
            role.append(names.setdefault(turn.agent, len(names)) if apart else -1)
            key = (turn.agent if apart else "", turn.context if scored else "")
            seat.append(numbers.setdefault(key, len(numbers)))
            score.append(episode.outcome_of(turn))
    return Seats([*names], np.array(seat, np.int64), np.array(role, np.int64), np.array(score, np.float64), own)


def _several(episode: Episode) -> bool:
    """Returns True if the policy plays several roles that do not share all rewards."""
    own = episode.own_turns
    if any(_scored(episode, turn) for turn in own):
        return True
    return len({turn.agent for turn in own}) > 1 and any(turn.rewards for turn in own)


def _scored(episode: Episode, turn: Turn) -> bool:
    """Returns True if the context of the turn has a separate outcome."""
    context = episode.contexts.get(turn.context)
    return context is not None and context.outcome is not None
