"""Gives credit to the episodes of an update, and trains the models that the credit needs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from agentrl.config.recipe import TrainSection
from agentrl.estimators.registry import CreditAssigner, EpisodeCredit
from agentrl.training.batch.kl_reward import Penalised, with_kl_reward
from agentrl.training.batch.model_columns import ModelColumns
from agentrl.training.trainer import Trainer
from agentrl.types.episode import Episode
from agentrl.types.sample import TrainingSample

Samples = dict[str, list[TrainingSample]]
"""By episode id."""


class CreditGiver:
    """Computes credit for the turns of one policy.

    Attributes:
        columns: model outputs for the credit.
    """

    def __init__(self, settings: TrainSection, credit: CreditAssigner, trainer: Trainer) -> None:
        self._settings, self._credit, self._trainer = settings, credit, trainer
        self.columns = ModelColumns(credit, trainer)

    def give(
        self, chosen: list[Episode], samples: Samples, iteration: int
    ) -> tuple[list[EpisodeCredit], dict[str, Any]]:
        """Credit of each episode, in order. Critic and reward model are trained here, too."""
        penalised, metrics = Penalised(chosen), {}
        if self._settings.kl is not None and self._settings.kl.place == "reward":
            place = self._credit.penalty_place()
            penalised = with_kl_reward(chosen, samples, self._trainer, self._settings.kl, place)
            metrics["kl_ref"] = penalised.kl
        scored = penalised.episodes
        rewarded = {each.id: _rewarded(samples[each.id], each) for each in scored}
        columns = {**self.columns.of(scored, rewarded), **penalised.columns}
        credits, told = self._credit.assign(scored, columns, iteration / self._settings.iterations)
        return credits, {**metrics, **self.columns.learn(scored, rewarded, credits), **told}


def _rewarded(samples: list[TrainingSample], episode: Episode) -> list[TrainingSample]:
    """The samples with the reward that credit reads, which the KL penalty may have changed."""
    reward = episode.reward or 0.0
    return [each if each.reward == reward else replace(each, reward=reward) for each in samples]
