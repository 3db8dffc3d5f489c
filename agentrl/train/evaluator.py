"""Evaluation before, during and after training: the trainer waits for it, or it runs in the background."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

import torch

from agentrl.chat.renderer import Renderer
from agentrl.config.recipe import EvalSettings, TrainingRecipe
from agentrl.curriculum.task_source import TaskSource, load_tasks
from agentrl.rollout.collector import Collector
from agentrl.train.run_state import RunState
from agentrl.train.stages.policy import load_policy
from agentrl.train.trainer import cast
from agentrl.types.engine import Engine


class Evaluator(Protocol):
    """Evaluates when that is due: at the start, at the end, and every so often."""

    async def catch_up(self, iteration: int) -> None:
        """Does again what a kill cut short before this iteration, as far as checkpoints were kept for it."""
        ...

    async def run_if_due(self, iteration: int) -> None:
        """Evaluates the policy as it is now, or begins to."""
        ...

    def keeps(self, iteration: int) -> bool:
        """Whether an evaluation after this iteration needs a checkpoint, to be caught up on after a kill."""
        ...

    @property
    def busy(self) -> bool:
        """Whether an evaluation is under way, whose checkpoint must stay."""
        ...

    async def finish(self) -> None:
        """Waits for what is under way."""
        ...

    async def close(self) -> None:
        """Cancels what is under way."""
        ...


class Evaluations:
    """When a training is evaluated, and on what."""

    def __init__(
        self, recipe: TrainingRecipe, collector: Collector, tasks: TaskSource, renderer: Renderer, state: RunState
    ) -> None:
        self._settings, self._iterations = recipe.eval, recipe.train.iterations
        self._collector, self._renderer, self._state = collector, renderer, state
        given = None if recipe.eval is None else recipe.eval.tasks
        self._tasks = tasks if given is None else load_tasks(given, recipe.base, recipe.seed)

    def due(self, iteration: int, *, past: bool = False) -> EvalSettings | None:
        """The settings, if an evaluation is due; once each, also in a run that was killed in between.

        Args:
            past: training has gone on since.
        """
        settings = self._settings
        if settings is None or self._state.record.has_line("eval", iteration):
            return None
        last = iteration == self._iterations or (not past and self._state.is_over(iteration))
        every = settings.every
        return settings if iteration == 0 or last or (every > 0 and iteration % every == 0) else None

    async def run(self, settings: EvalSettings, engine: Engine, iteration: int) -> None:
        """Evaluates what the engine samples."""
        record = self._state.record
        line = await self._collector.evaluate(
            settings, self._tasks, engine, self._renderer, iteration, prefix=record.stage.prefix
        )
        self._collector.reporter.metrics(record.add_line(line))


class BlockingEvaluator:
    """Evaluates on the engine that training samples from: the trainer waits, rollouts of later iterations go on."""

    busy = False

    def __init__(self, evaluations: Evaluations, engine: Engine) -> None:
        self._evaluations, self._engine = evaluations, engine

    async def catch_up(self, iteration: int) -> None:
        """Training waited for what is behind it."""

    async def run_if_due(self, iteration: int) -> None:
        """Evaluates the policy as it is now."""
        if (settings := self._evaluations.due(iteration)) is not None:
            await self._evaluations.run(settings, self._engine, iteration)

    def keeps(self, iteration: int) -> bool:
        """Training goes on from before an evaluation that a kill cuts short."""
        return False

    async def finish(self) -> None:
        """Nothing is under way."""

    async def close(self) -> None:
        """Nothing is under way."""


class BackgroundEvaluator:
    """Evaluates on an engine of its own, which holds a copy of the policy, while training goes on.

    Args:
        hand_over: gives the engine the policy as it is now.
    """

    def __init__(
        self,
        evaluations: Evaluations,
        engine: Engine,
        hand_over: Callable[[Engine, int], Awaitable[None]],
        recipe: TrainingRecipe,
        state: RunState,
    ) -> None:
        self._evaluations, self._engine, self._hand_over = evaluations, engine, hand_over
        self._recipe, self._state = recipe, state
        self._task: asyncio.Task[None] | None = None

    @property
    def busy(self) -> bool:
        """Whether an evaluation is under way, whose checkpoint must stay."""
        return self._task is not None and not self._task.done()

    async def catch_up(self, iteration: int) -> None:
        """Evaluates the checkpoints of evaluations that a kill cut short."""
        for earlier in range(iteration):
            settings, folder = self._evaluations.due(earlier, past=True), self._state.record.folder(earlier)
            if settings is not None and folder.exists():
                await self.finish()
                then = load_policy(self._recipe, folder).state_dict()
                await self._engine.update(cast(then, getattr(torch, self._recipe.model.dtype)), earlier)
                self._begin(settings, earlier)

    async def run_if_due(self, iteration: int) -> None:
        """Begins to evaluate the policy as it is now, when the evaluation before has ended."""
        if (settings := self._evaluations.due(iteration)) is not None:
            await self.finish()
            await self._hand_over(self._engine, iteration)
            self._begin(settings, iteration)

    def keeps(self, iteration: int) -> bool:
        """Training does not wait: a kill that cuts the evaluation short comes after later checkpoints."""
        return self._evaluations.due(iteration) is not None

    async def finish(self) -> None:
        """Waits for the evaluation that is under way."""
        if self._task is not None:
            await self._task
            self._task = None

    async def close(self) -> None:
        """Cancels the evaluation that is under way."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _begin(self, settings: EvalSettings, iteration: int) -> None:
        self._task = asyncio.create_task(self._evaluations.run(settings, self._engine, iteration))
