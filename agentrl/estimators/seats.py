"""Seats: the parts of an episode that are credited apart, because what one earned the other did not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from agentrl.estimators.arrays import Floats, Ints
from agentrl.types.episode import Episode, Turn


@dataclass(frozen=True)
class Seats:
    """Which seat each turn of a table belongs to, and what it came to.

    Attributes:
        names: of the roles; `role` is an index into them.
        seat: equal numbers, equal seat, within a trajectory [n_turns].
        role: of the seats that are compared with those of the same role only; -1: with the whole group [n_turns].
        score: outcome of the seat that the turn belongs to [n_turns].
        own: whether some seat has an outcome that is not the episode's.
    """

    names: list[str]
    seat: Ints
    role: Ints
    score: Floats
    own: bool


def seats_of(episodes: Sequence[Episode]) -> Seats | None:
    """The seats of the policy's turns; None if no episode holds several.

    The members of a group are parted by role where one of them holds several roles of the policy, and either contexts
    with outcomes of their own (`context.score`) or rewards of turns. Else all share whatever there is to share, and
    stay one trajectory.
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
    """Whether the policy speaks in several roles, of which not all share what there is to earn."""
    own = episode.own_turns
    if any(_scored(episode, turn) for turn in own):
        return True
    return len({turn.agent for turn in own}) > 1 and any(turn.rewards for turn in own)


def _scored(episode: Episode, turn: Turn) -> bool:
    """Whether the context of the turn has an outcome of its own."""
    context = episode.contexts.get(turn.context)
    return context is not None and context.outcome is not None
