"""Gives credit to the episodes of an update, and trains the models that the credit needs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from agentrl.chat.renderer import Renderer
from agentrl.config.recipe import TrainSection
from agentrl.estimators.registry import CreditAssigner, EpisodeCredit
from agentrl.training.auxiliary.models import required_models
from agentrl.training.backend import TrainerBackend
from agentrl.training.batch.kl_reward import Penalised, with_kl_reward
from agentrl.training.batch.model_columns import ModelColumns, measured
from agentrl.training.batch.privileged import Privileged
from agentrl.training.compute_thread import Compute
from agentrl.training.losses.loss import COLUMN_OF
from agentrl.types.episode import Episode
from agentrl.types.sample import TrainingSample

Samples = dict[str, list[TrainingSample]]
"""By episode id."""


class CreditGiver:
    """Computes credit for the turns of one policy, and keeps what its credit remembers between updates.

    Args:
        renderer: renders what a reward model is shown in private.

    Attributes:
        call: runs a function where the batch is computed, between the calls of the trainer.
    """

    def __init__(
        self,
        settings: TrainSection,
        credit: CreditAssigner,
        trainer: TrainerBackend,
        compute: Compute,
        renderer: Renderer | None = None,
    ) -> None:
        self._settings, self._credit, self._trainer = settings, credit, trainer
        models = required_models(settings, credit.needs)
        sees = settings.reward_model.sees if settings.reward_model is not None else None
        privileged = Privileged(renderer, sees) if renderer is not None and sees is not None else None
        self._columns = ModelColumns(credit.needs, models, trainer, privileged)
        self._memory = credit.memory()
        self.call = compute.call

    async def give(
        self, chosen: list[Episode], samples: Samples, iteration: int
    ) -> tuple[list[EpisodeCredit], dict[str, Any]]:
        """Credit of each episode, in order. Critic and reward model are trained here, too."""
        penalised, metrics = Penalised(chosen), {}
        progress = iteration / self._settings.iterations
        if self._credit.follows_training:  # `agentrl credit` reads it: the training may be made longer later
            metrics["progress_of_training"] = progress
        if self._settings.kl is not None and self._settings.kl.place == "reward":
            rows = [sample for episode in chosen for sample in samples[episode.id]]
            policy = await self._trainer.logprobs(rows)
            reference = await measured(self._trainer, COLUMN_OF[self._settings.kl.to], rows)
            place = self._credit.penalty_place()
            settings = self._settings.kl.at(progress)
            penalised = await self.call(with_kl_reward, chosen, rows, policy, reference, settings, place)
            metrics["kl_ref"] = penalised.kl
        scored = penalised.episodes
        rewarded = {each.id: _rewarded(samples[each.id], each) for each in scored}
        columned = await self._columns.measured([sample for each in scored for sample in rewarded[each.id]], scored)

        def assigned() -> tuple[list[EpisodeCredit], dict[str, Any]]:
            columns = {**self._columns.of(scored, rewarded, columned), **penalised.columns}
            return self._credit.assign(scored, columns, progress, self._memory, iteration)

        credits, told = await self.call(assigned)
        return credits, {**metrics, **await self._columns.learn(scored, rewarded, credits), **told}

    def state_dict(self) -> dict[str, Any]:
        """The remembered values of states, as JSON values; empty if the credit remembers nothing."""
        return {} if self._memory is None else self._memory.state_dict()

    def load_state_dict(self, state: dict[str, Any], iteration: int) -> None:
        """Restores a result of `state_dict`, before an iteration."""
        if self._memory is not None and state:
            self._memory.load_state_dict(state, iteration)


def _rewarded(samples: list[TrainingSample], episode: Episode) -> list[TrainingSample]:
    """The samples with the reward that credit reads, which the KL penalty may have changed."""
    reward = episode.reward or 0.0
    return [each if each.reward == reward else replace(each, reward=reward) for each in samples]
