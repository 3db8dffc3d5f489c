"""Rewards of a group: functions that take all of its episodes, after the last one ended.

Failed members are left out, as in advantage estimation. Components of the group are added to the values of each
member's own components; gates, weights and the sum are then applied to all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from agentrl.rewards.bare import without
from agentrl.rewards.components import Component, RewardError, RewardSet, no_blobs
from agentrl.rewards.declare import Beliefs, Scored
from agentrl.rewards.score import Score
from agentrl.rewards.spans import Decode, recorded
from agentrl.rewards.steps import Values, apply
from agentrl.types.episode import Episode
from agentrl.types.errors import AgentRLError, asked_to_stop, place_of
from agentrl.types.values import text

Valued = tuple[Values, str]
"""A value and its note."""


async def score_group(
    rewards: RewardSet,
    group: Sequence[Episode],
    read_blob: Callable[[str], bytes] | None = None,
    beliefs: Beliefs | None = None,
    decode: Decode | None = None,
) -> list[Score]:
    """Returns the full score of every member of a group, in order.

    Args:
        group: the episodes without failures, in order, with the scores of the components of one episode.
        read_blob: gives the bytes of an image or of a long output by its hash.
        beliefs: gives the policy's probabilities of answers; None: no policy samples.
        decode: gives the text of sampled tokens, by which the tokens of spans are found; None: they stay unknown.

    Raises:
        RewardError: a function raised, or did not return one reward per member.
        AgentRLError: a function raised it.
    """
    names = {component.name for component in rewards.of_group}
    rewards = rewards.of(group[0].task)
    members = [_without(episode, names) for episode in group]
    found = [_own_values(rewards, episode) for episode in members]
    notes = [dict(episode.notes) for episode in members]
    for component in rewards.of_group:
        # A component sees the values and notes of those before it.
        seen = [_with_outcomes(*each) for each in zip(members, found, notes, strict=True)]
        for index, (value, note) in enumerate(await _values_of(component, seen, read_blob, beliefs, decode)):
            found[index][component.name] = value
            if note:
                notes[index][component.name] = note
    return [rewards.combine(*each) for each in zip(members, found, notes, strict=True)]


def _without(episode: Episode, names: set[str]) -> Episode:
    """The episode without an earlier score of its group."""
    turns = [msgspec.structs.replace(without(turn, names), reward=None) for turn in episode.turns]
    return msgspec.structs.replace(
        episode,
        turns=turns,
        components=_rest(episode.components, names),
        notes=_rest(episode.notes, names),
        reward=None,
        pending=[],
        gates=[],
    )


def _rest(values: Mapping[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}


def _own_values(rewards: RewardSet, episode: Episode) -> dict[str, Values]:
    """Returns the values that the components of one episode gave."""
    return {
        component.name: episode.components[component.name]
        if component.name in episode.components
        else [recorded(turn, component.name) for turn in episode.turns]
        for component in rewards.components
        if not component.of_group
    }


def _with_outcomes(episode: Episode, found: Mapping[str, Values], notes: Mapping[str, str]) -> Episode:
    outcomes = {name: value for name, value in found.items() if not isinstance(value, list)}
    return msgspec.structs.replace(episode, components=outcomes, notes={**notes})


async def _values_of(
    component: Component,
    group: Sequence[Episode],
    read_blob: Callable[[str], bytes] | None,
    beliefs: Beliefs | None,
    decode: Decode | None,
) -> list[Valued]:
    """Calls a function of the group. Returns the value of each member."""
    own = [episode.copied() for episode in group]
    place = f"group {group[0].group_id}"
    try:
        given = {"group": own, "task": group[0].task.copied(), "component": component.name}
        returned = await component.call({**given, "read_blob": read_blob or no_blobs, "beliefs": beliefs or no_beliefs})
        items = _aligned(component, returned, group, place)
        return [_value_of(component, item, episode, decode) for item, episode in zip(items, group, strict=True)]
    except AgentRLError as error:
        error.add_note(f"in reward component {component.name!r}")
        raise
    except BaseException as error:
        if asked_to_stop(error):
            raise
        raise RewardError(
            f"reward component {component.name!r} raised {type(error).__name__}: {error}",
            place=", ".join(filter(None, [place, place_of(error)])),
            remedy="fix the function and run the same command again",
        ) from error


async def no_beliefs(episode: Episode, answers: Sequence[str], lead: str) -> list[list[float | None]]:
    """Gives probabilities where no policy samples.

    Raises:
        RewardError: always.
    """
    raise RewardError(
        "no policy samples here that could score answers",
        place=f"episode {episode.id}",
        remedy="score in the rollout, with a model; `agentrl rescore` keeps the component out: --set rewards.NAME=null",
    )


def _aligned(component: Component, returned: Any, group: Sequence[Episode], place: str) -> list[Any]:
    listed = returned.tolist() if getattr(returned, "ndim", 0) else returned  # a NumPy array, a tensor
    if not isinstance(listed, list | tuple) or len(listed) != len(group):
        what = f"{len(listed)} values" if isinstance(listed, list | tuple) else f"{type(listed).__name__}"
        raise RewardError(
            f"reward component {component.name!r} returned {what} for a group of {len(group)}",
            place=place,
            remedy="return a list with one entry for each episode of `group`, in its order; None: not scored",
        )
    return list(listed)


def _value_of(component: Component, item: Any, episode: Episode, decode: Decode | None) -> Valued:
    value, note = (item.value, text(item.note)) if isinstance(item, Scored) else (item, "")
    return apply(component.steps, component.check(value, episode, decode)), note
