"""Episodes as each of the policies sees them that train on them, and the record of the credit that all of them give."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from agentrl.config.agent import PolicySettings
from agentrl.estimators.registry import EpisodeCredit
from agentrl.types.episode import Episode
from agentrl.types.figures.sums import total


def own_views(chosen: Iterable[Episode], name: str, settings: PolicySettings) -> list[Episode]:
    """Returns the episodes in which an auxiliary policy played and has an outcome, from its perspective.

    Recorded episodes (`agentrl train --from`) may be those of a frozen policy of this name, which lack tokens.
    """
    spoke = [episode for episode in chosen if name in episode.trained_policies]
    return [each for episode in spoke if (each := own_view(episode, name, settings)).scored]


def own_view(episode: Episode, name: str, settings: PolicySettings) -> Episode:
    """An episode as the policy sees it, with its own outcome: not scored if a component of it was not."""
    seen = episode.seen_by(name)
    if settings.outcome is None or not episode.scored:
        return seen
    values = {each: episode.components.get(each) for each in settings.outcome}
    known = [weight * value for each, weight in settings.outcome.items() if (value := values[each]) is not None]
    return msgspec.structs.replace(seen, reward=total(known) if len(known) == len(values) else None)


def together(credits: Iterable[EpisodeCredit]) -> list[EpisodeCredit]:
    """A record for each episode: policies are credited for different turns, and each with 0 for those of others."""
    found: dict[str, EpisodeCredit] = {}
    for each in credits:
        known = found.get(each.episode_id)
        found[each.episode_id] = each if known is None else _sum(known, each)
    return list(found.values())


def _sum(one: EpisodeCredit, other: EpisodeCredit) -> EpisodeCredit:
    """For the record only: advantages of tokens are not stored."""
    none = [0.0] * len(one.turn_advantages)
    return EpisodeCredit(
        episode_id=one.episode_id,
        estimator=one.estimator,
        turn_advantages=_added(one.turn_advantages, other.turn_advantages),
        parts={
            name: _added(one.parts.get(name, none), other.parts.get(name, none))
            for name in {**one.parts, **other.parts}
        },
    )


def _added(one: Sequence[float], other: Sequence[float]) -> list[float]:
    return [a + b for a, b in zip(one, other, strict=True)]
