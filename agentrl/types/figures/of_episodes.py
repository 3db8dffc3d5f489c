"""Metrics of an episode: one definition of each for metrics, summaries, checks and curricula."""

from __future__ import annotations

from collections.abc import Callable

from agentrl.types.episode import Episode, Turn
from agentrl.types.figures.sums import reaches, total

SUCCESS = "success"
"""Component that measures success, unless the recipe's `success` names another."""


def immediate(turn: Turn) -> float:
    """Returns the reward of a turn, weighted and gated by the recipe, else the sum of its components."""
    if turn.reward is not None:
        return turn.reward
    return total(value for value in turn.rewards.values() if value is not None)


def turns_of(episode: Episode) -> int:
    """Returns the number of turns of the main policy, without those of other policies."""
    return len(episode.own_turns)


def earned(episode: Episode) -> float | None:
    """Returns the total reward: the outcome and the recipe's rewards of the policy's turns; None: the episode was not
    scored.
    """
    if episode.reward is None:
        return None
    return total([episode.reward, *(turn.reward or 0.0 for turn in episode.own_turns)])


def success_of(episode: Episode) -> float | None:
    """Returns the value that measures success, reached at 1 and above; None: unknown.

    That of the component that the recipe's `success` names, else of a component `success`, else the outcome, and if
    only turns are rewarded their sum. The score of an episode names it; a record without a name is read likewise.
    """
    name = episode.success or (SUCCESS if SUCCESS in episode.components else "reward")
    return component(episode, SUCCESS) if name == SUCCESS else figure(episode, name)


def figure(episode: Episode, metric: str) -> float | None:
    """Returns a metric by name: `success`, `reward` (the outcome), `total` (plus the rewards of the policy's turns), or
    a component of the recipe before its weight (of turns: their sum). None: it was not scored.

    If a component is named `reward`, too, the metric is still the outcome.
    """
    return NAMED[metric](episode) if metric in NAMED else component(episode, metric)


def _credited(episode: Episode) -> float | None:
    """Returns the same as `earned`, also for episodes whose turns no recipe has scored: the input of credit."""
    return None if episode.reward is None else total([episode.reward, *map(immediate, episode.own_turns)])


def component(episode: Episode, name: str) -> float | None:
    """Returns the value of a component before its weight; of turns the sum over those of the policy. None: not scored.

    An outcome has precedence over the rewards that a tool gave to turns under its name.
    """
    if name in episode.components:
        return episode.components[name]
    given = [score for turn in episode.own_turns if (score := turn.rewards.get(name)) is not None]
    return total(given) if given else None


def succeeded(episode: Episode, metric: str = SUCCESS, threshold: float = 1.0) -> bool:
    """Returns True if a metric, by default that of success, reaches the threshold."""
    value = figure(episode, metric)
    return value is not None and reaches(value, threshold)


NAMED: dict[str, Callable[[Episode], float | None]] = {
    SUCCESS: success_of,
    "reward": lambda episode: episode.reward,
    "total": _credited,
}
"""Metrics other than components."""
