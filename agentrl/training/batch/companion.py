"""Second trained policy: separate adapters on the initial model of the training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agentrl.config.train import LoraSettings
from agentrl.training.batch.beside import BesideBuilder
from agentrl.training.batch.model_columns import ModelColumns
from agentrl.training.checkpoint import Adapted
from agentrl.training.publisher import WeightPublisher
from agentrl.training.trainer import Trainer
from agentrl.types.errors import AgentRLError
from agentrl.types.sample import TrainingSample
from agentrl.types.seeds import derive_seed


@dataclass(frozen=True)
class Companion:
    """A trainer with its engine and its batches.

    Attributes:
        builder: builds its batches.
        columns: model outputs for its credit.
        publisher: sends its weights to its engine.
    """

    name: str
    lora: LoraSettings
    trainer: Trainer
    builder: BesideBuilder
    columns: ModelColumns
    publisher: WeightPublisher

    def update(self, samples: list[TrainingSample], seed: int, progress: float) -> dict[str, Any]:
        """One update, as that of the main policy. Metrics have the policy's name in front.

        Raises:
            AgentRLError: as `Trainer.update`, with the policy's name.
        """
        found: dict[str, float] = {"trained_rows": float(len(samples))}
        if samples:
            try:
                found |= self.trainer.update(samples, seed=derive_seed(seed, self.name), progress=progress)
            except AgentRLError as error:
                place = ", ".join(filter(None, [f"policies.{self.name}", error.place]))
                raise type(error)(error.message, place=place, remedy=error.remedy) from error
        return {f"{self.name}/{key}": value for key, value in found.items()}

    def state_dict(self) -> dict[str, Any]:
        """Returns the state for `load_state_dict`."""
        return {**self.trainer.state_dict(), "critics": self.columns.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the result of `state_dict`."""
        self.trainer.load_state_dict(state)
        self.columns.load_state_dict(state["critics"])

    def saved(self) -> Adapted:
        """Returns its weights and adapters for a checkpoint."""
        return Adapted(self.trainer.weights(device="cpu"), self.trainer.adapters(), self.lora)
