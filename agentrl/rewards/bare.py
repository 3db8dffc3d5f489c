"""Turns without the rewards of reward functions, for episodes that are rescored or resumed."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from agentrl.config.rewards import RewardSettings
from agentrl.types.episode import Episode, Turn


def scoring_functions(rewards: Mapping[str, RewardSettings]) -> set[str]:
    """Names of the components that are functions. `tool_reward` is excluded: it reads rewards of tools and agents."""
    return {name for name, settings in rewards.items() if (settings.use or name) != "tool_reward"}


def bare_turns(episode: Episode, functions: Collection[str]) -> list[Turn]:
    """Returns the turns with only the rewards that tools and agents gave.

    A component with an outcome for the episode did not score turns: turn rewards of that name stay.

    Args:
        functions: names of the components that may have scored turns.
    """
    theirs = set(functions) - episode.components.keys()
    return [without(turn, theirs) for turn in episode.turns]


def without(turn: Turn, names: Collection[str]) -> Turn:
    """Returns the turn without the rewards of some components."""
    return msgspec.structs.replace(
        turn,
        rewards={name: value for name, value in turn.rewards.items() if name not in names},
        spans=[span for span in turn.spans if span.component not in names],
    )
