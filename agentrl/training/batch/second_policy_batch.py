"""Training batches of a second trainable policy, with its own turns, outcome and baselines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.config.agent import PolicySettings
from agentrl.estimators.registry import EpisodeCredit
from agentrl.training.batch.credit_giver import CreditGiver, Samples
from agentrl.training.batch.truncation import Truncation
from agentrl.training.batch.views import own_views
from agentrl.types.episode import Episode
from agentrl.types.figures.of_episodes import earned
from agentrl.types.sample import TrainingSample, untrained_samples, with_advantages


@dataclass(frozen=True)
class SecondPolicyBatch:
    """Training data of a second policy in an update."""

    samples: list[TrainingSample]
    credits: list[EpisodeCredit]
    metrics: dict[str, Any]


class SecondPolicyBuilder:
    """Builds its batches from the episodes that the main policy trains on.

    Attributes:
        giver: gives the credit of this policy.
    """

    def __init__(self, name: str, settings: PolicySettings, giver: CreditGiver, truncation: Truncation) -> None:
        self._name, self._settings, self.giver, self._truncation = name, settings, giver, truncation

    async def build(self, chosen: Sequence[Episode], iteration: int) -> SecondPolicyBatch:
        """The batch of an iteration: of the episodes in which the policy spoke and has an outcome."""
        seen, samples = await self.giver.call(self._laid_out, chosen)
        credits, metrics = await self.giver.give(seen, samples, iteration)
        return await self.giver.call(self._batch, seen, samples, credits, metrics)

    def _laid_out(self, chosen: Sequence[Episode]) -> tuple[list[Episode], Samples]:
        seen = own_views(chosen, self._name, self._settings)
        return seen, {each.id: untrained_samples(each) for each in seen}

    def _batch(
        self, seen: list[Episode], samples: Samples, credits: list[EpisodeCredit], metrics: dict[str, Any]
    ) -> SecondPolicyBatch:
        trained = {each.id for each in seen if self._truncation.of(each) != "mask"}
        training = [
            sample
            for credit in credits
            if credit.episode_id in trained
            for sample in with_advantages(
                samples[credit.episode_id], credit.turn_advantages, credit.token_advantages, credit.clip_scales
            )
        ]
        rewards = [earned(each) or 0.0 for each in seen]
        metrics = {**metrics, "reward": sum(rewards) / len(rewards) if rewards else None}
        return SecondPolicyBatch(training, credits, {f"{self._name}/{key}": value for key, value in metrics.items()})
