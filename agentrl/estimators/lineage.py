"""Origins of turns: a turn that a fork took over is the turn of its parent."""

from __future__ import annotations

from collections.abc import Sequence

from agentrl.types.episode import Episode

Origin = tuple[str, str, int]
"""Run, episode and index of a sampled turn. The run is empty for episodes of the credited run."""


def origins(episodes: Sequence[Episode]) -> list[int]:
    """Numbers the sampled turns of episodes: a turn that a fork took over has the number of the original [n_turns].

    A fork of an episode that is not given shares the turns before it with its siblings alone.
    """
    known = {episode.id: episode for episode in episodes}
    numbers: dict[Origin, int] = {}
    return [
        numbers.setdefault(_origin(episode, turn.index, known), len(numbers))
        for episode in episodes
        for turn in episode.own_turns
    ]


def _origin(episode: Episode, turn: int, known: dict[str, Episode]) -> Origin:
    """Returns where a turn was sampled: in the episode, or in one that it was forked from."""
    run, id, parent = "", episode.id, episode.parent
    while parent is not None and turn < parent.turn:
        run, id = parent.run, parent.episode
        found = known.get(id) if not run else None
        parent = None if found is None else found.parent
    return run, id, turn
