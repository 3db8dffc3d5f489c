"""The figures of an episode: one definition of each for metrics, summaries, checks and curricula."""

from __future__ import annotations

from collections.abc import Callable

from agentrl.types.episode import Episode, Turn
from agentrl.types.figures.sums import reaches, total

SUCCESS = "success"
"""The component that tells success, where the recipe's `success` names no other."""


def immediate(turn: Turn) -> float:
    """The reward of a turn, weighted and gated by the recipe, else the sum of its components."""
    if turn.reward is not None:
        return turn.reward
    return total(value for value in turn.rewards.values() if value is not None)


def turns_of(episode: Episode) -> int:
    """Number of turns of the policy, without those of other voices."""
    return len(episode.own_turns)


def earned(episode: Episode) -> float | None:
    """The reward: the outcome and what a recipe's rewards gave the policy's turns; None: the episode was not scored."""
    if episode.reward is None:
        return None
    return total([episode.reward, *(turn.reward or 0.0 for turn in episode.own_turns)])


def success_of(episode: Episode) -> float | None:
    """The value that tells success, which is one from 1 on; None: nobody knows.

    That of the component that the recipe's `success` names, else of a component `success`, else the outcome, and where
    only turns are rewarded their sum. The score of an episode names it; a record without a name is read likewise.
    """
    name = episode.success or (SUCCESS if SUCCESS in episode.components else "reward")
    return component(episode, SUCCESS) if name == SUCCESS else figure(episode, name)


def figure(episode: Episode, metric: str) -> float | None:
    """A figure by name: `success`, `reward` (the outcome), `total` (that and the rewards of the policy's turns), or a
    component of the recipe before its weight (of turns: their sum). None: it was not scored.

    A component may be named `reward`, too: the figure is the outcome all the same.
    """
    return NAMED[metric](episode) if metric in NAMED else component(episode, metric)


def _credited(episode: Episode) -> float | None:
    """As `earned`, also of episodes whose turns no recipe has scored: what credit reads."""
    return None if episode.reward is None else total([episode.reward, *map(immediate, episode.own_turns)])


def component(episode: Episode, name: str) -> float | None:
    """The value of a component before its weight; of turns the sum over those of the policy. None: not scored.

    An outcome goes before the rewards that a tool gave to turns under its name.
    """
    if name in episode.components:
        return episode.components[name]
    given = [score for turn in episode.own_turns if (score := turn.rewards.get(name)) is not None]
    return total(given) if given else None


def succeeded(episode: Episode, metric: str = SUCCESS, threshold: float = 1.0) -> bool:
    """Whether a figure, by default that of success, reaches the threshold."""
    value = figure(episode, metric)
    return value is not None and reaches(value, threshold)


NAMED: dict[str, Callable[[Episode], float | None]] = {
    SUCCESS: success_of,
    "reward": lambda episode: episode.reward,
    "total": _credited,
}
"""Figures beside the components."""
