"""Second trained policy: separate adapters on the initial model of the training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agentrl.training.backend import TrainerBackend
from agentrl.training.batch.second_policy_batch import SecondPolicyBuilder
from agentrl.training.publisher import WeightPublisher
from agentrl.types.errors import AgentRLError
from agentrl.types.sample import TrainingSample
from agentrl.types.seeds import derive_seed


@dataclass(frozen=True)
class SecondPolicy:
    """A trainer with its engine and its batches.

    Attributes:
        builder: builds its batches.
        publisher: sends its weights to its engine.
    """

    name: str
    trainer: TrainerBackend
    builder: SecondPolicyBuilder
    publisher: WeightPublisher

    async def update(self, samples: list[TrainingSample], seed: int, progress: float) -> dict[str, Any]:
        """One update, as that of the main policy. Metrics have the policy's name in front.

        Raises:
            AgentRLError: as `TrainerBackend.update`, with the policy's name.
        """
        found: dict[str, float] = {"trained_rows": float(len(samples))}
        if samples:
            try:
                found |= await self.trainer.update(samples, seed=derive_seed(seed, self.name), progress=progress)
            except AgentRLError as error:
                place = ", ".join(filter(None, [f"policies.{self.name}", error.place]))
                raise type(error)(error.message, place=place, remedy=error.remedy) from error
        return {f"{self.name}/{key}": value for key, value in found.items()}
