"""The batches of a policy that trains beside the main one: its own turns, its own outcome, its own baselines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from agentrl.config.agent import PolicySettings
from agentrl.credit.registry import EpisodeCredit
from agentrl.train.batch.credit_giver import CreditGiver
from agentrl.train.batch.truncation import Truncation
from agentrl.types.episode import Episode
from agentrl.types.sample import TrainingSample, untrained_samples, with_advantages


@dataclass(frozen=True)
class BesideBatch:
    """What such a policy trains on in an update."""

    samples: list[TrainingSample]
    credits: list[EpisodeCredit]
    metrics: dict[str, Any]


class BesideBuilder:
    """Builds its batches from the episodes that the main policy trains on."""

    def __init__(self, name: str, settings: PolicySettings, giver: CreditGiver, truncation: Truncation) -> None:
        self._name, self._settings, self._giver, self._truncation = name, settings, giver, truncation

    def build(self, chosen: Sequence[Episode], iteration: int) -> BesideBatch:
        """The batch of an iteration: of the episodes in which the policy spoke and has an outcome.

        Recorded episodes (`agentrl train --from`) may be those of a frozen voice of its name, which have no tokens.
        """
        spoke = [episode for episode in chosen if self._name in episode.trained_policies]
        seen = [each for episode in spoke if (each := own_view(episode, self._name, self._settings)).scored]
        samples = {each.id: untrained_samples(each) for each in seen}
        credits, told = self._giver.give(seen, samples, iteration)
        trained = {each.id for each in seen if self._truncation.of(each) != "mask"}
        training = [
            sample
            for credit in credits
            if credit.episode_id in trained
            for sample in with_advantages(samples[credit.episode_id], credit.turn_advantages, credit.token_advantages)
        ]
        rewards = [each.reward or 0.0 for each in seen]
        told["reward"] = sum(rewards) / len(rewards) if rewards else None
        return BesideBatch(training, credits, {f"{self._name}/{key}": value for key, value in told.items()})


def own_view(episode: Episode, name: str, settings: PolicySettings) -> Episode:
    """An episode as the policy sees it, with its own outcome: not scored if a component of it was not."""
    seen = episode.seen_by(name)
    if settings.outcome is None or not episode.scored:
        return seen
    values = {each: episode.components.get(each) for each in settings.outcome}
    known = [weight * value for each, weight in settings.outcome.items() if (value := values[each]) is not None]
    return msgspec.structs.replace(seen, reward=sum(known) if len(known) == len(values) else None)


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
