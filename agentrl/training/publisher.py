"""Sends the trained weights to engines, and checks that they arrived."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import msgspec

from agentrl.config.recipe import TrainingRecipe
from agentrl.training.backend import TrainerBackend
from agentrl.training.canary import Canary
from agentrl.types.engine import Engine, NoAdapters
from agentrl.types.memory import TextMemory
from agentrl.types.reporter import Reporter

Follower = Callable[[int], Awaitable[None]]


class WeightPublisher:
    """Publishes each version of the trainer's weights to the engine.

    Args:
        engine: the engine that samples the training episodes.
        canary: compares engine and trainer after every update; None: no check.
        followers: notified of each published version: past snapshots, publishers of other policies.

    Attributes:
        metrics: metrics of the last comparison.
    """

    def __init__(
        self,
        recipe: TrainingRecipe,
        trainer: TrainerBackend,
        engine: Engine,
        canary: Canary | None,
        reporter: Reporter,
        followers: Sequence[Follower] = (),
    ) -> None:
        self._recipe, self._trainer, self._engine, self._canary = recipe, trainer, engine, canary
        self._reporter, self._followers = reporter, followers
        self.metrics: dict[str, float] = {}

    async def begin(self) -> None:
        """Starts publishing. Must be called while trainer and engine hold the loaded model."""
        if self._recipe.train.lora is not None and not self._engine.takes_adapters:
            self._reporter.note(f"LoRA: the engine gets weights merged in {self._recipe.model.dtype}")
        await self.rest()
        if self._canary is not None:
            self._canary.begin(await self._canary.trained(self._trainer))

    async def rest(self) -> None:
        """Frees what the engine shares with the trainer until the next update."""
        if not self._trainer.capabilities.memory:
            await self._engine.rest()

    async def publish(self, version: int) -> None:
        """Sends the current policy to the engine.

        Raises:
            WeightsLost: the policy did not reach the engine.
        """
        await self.hand_over(self._engine, version)
        for follow in self._followers:
            await follow(version)
        if self._canary is not None:
            started = time.perf_counter()
            trained = await self._canary.trained(self._trainer)
            self._canary.check(version, await self._canary.sampled(self._engine), trained)
            self.metrics = {**self._canary.metrics, "canary_s": time.perf_counter() - started}

    async def hand_over(self, to: Engine, version: int, checkpoint: Path | None = None) -> None:
        """Sends the current policy to any engine of the model.

        Args:
            checkpoint: that of an earlier version, to be sent instead.
        """
        given = await self._trainer.publish(to, checkpoint)
        if isinstance(given, TextMemory):
            to.memory = msgspec.structs.replace(given, version=version)
            return
        try:
            await to.update(given, version)
        except NoAdapters as refusal:  # from now on the engine takes none
            dtype = self._recipe.model.dtype
            self._reporter.note(f"LoRA: the engine gets weights merged in {dtype}, because {refusal.message}")
            await to.update(await self._trainer.publish(to, checkpoint), version)
