"""Evaluation before, during and after training: blocking, or in the background."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol

from agentrl.chat.renderer import Renderer
from agentrl.config.recipe import EvalSettings
from agentrl.rollouts.collector import Collector
from agentrl.training.run_state import RunState
from agentrl.training.stages.plan import RlPlan
from agentrl.types.engine import Engine


class Evaluator(Protocol):
    """Evaluates when an evaluation is due: at the start, at the end, and every `eval.every` iterations."""

    async def catch_up(self, iteration: int) -> None:
        """Repeats interrupted evaluations of earlier iterations, if their checkpoints still exist."""
        ...

    async def run_if_due(self, iteration: int) -> None:
        """Evaluates the current policy, or starts to."""
        ...

    def keeps(self, iteration: int) -> bool:
        """Returns True if an evaluation after this iteration needs a checkpoint, to be repeatable after a kill."""
        ...

    @property
    def busy(self) -> bool:
        """True while an evaluation is running: its checkpoint must not be deleted."""
        ...

    async def finish(self) -> None:
        """Waits for the running evaluation."""
        ...

    async def close(self) -> None:
        """Cancels the running evaluation."""
        ...


class Evaluations:
    """The schedule and the tasks of a training's evaluations."""

    def __init__(self, plan: RlPlan, collector: Collector, renderer: Renderer, state: RunState) -> None:
        self._settings, self._iterations, self._parts = plan.recipe.eval, plan.recipe.train.iterations, plan.parts
        self._collector, self._renderer, self._state = collector, renderer, state

    def due(self, iteration: int, *, past: bool = False) -> EvalSettings | None:
        """The settings, if an evaluation is due. Each is due once, also in a run that was killed in between.

        Args:
            past: whether training has continued since.
        """
        settings = self._settings
        if settings is None or self._state.record.has_line("eval", iteration):
            return None
        last = iteration == self._iterations or (not past and self._state.is_over(iteration))
        every = settings.every
        return settings if iteration == 0 or last or (every > 0 and iteration % every == 0) else None

    async def run(self, settings: EvalSettings, engine: Engine, iteration: int) -> None:
        """Evaluates the engine's policy."""
        record = self._state.record
        line = await self._collector.evaluate(
            settings, self._parts.eval_tasks, engine, self._renderer, iteration, prefix=record.stage.prefix
        )
        self._collector.reporter.metrics(record.add_line(line))


class BlockingEvaluator:
    """Evaluates on the engine that training samples from: the trainer waits, rollouts of later iterations continue."""

    busy = False

    def __init__(self, evaluations: Evaluations, engine: Engine) -> None:
        self._evaluations, self._engine = evaluations, engine

    async def catch_up(self, iteration: int) -> None:
        """Nothing to do: training waited for every earlier evaluation."""

    async def run_if_due(self, iteration: int) -> None:
        """Evaluates the current policy."""
        if (settings := self._evaluations.due(iteration)) is not None:
            await self._evaluations.run(settings, self._engine, iteration)

    def keeps(self, iteration: int) -> bool:
        """False: after a kill, training resumes before the interrupted evaluation."""
        return False

    async def finish(self) -> None:
        """Nothing is under way."""

    async def close(self) -> None:
        """Nothing is under way."""


class BackgroundEvaluator:
    """Evaluates on a second engine, which has a copy of the policy, while training continues.

    Args:
        hand_over: sends the current policy to the engine, or that of a checkpoint.
    """

    def __init__(
        self,
        evaluations: Evaluations,
        engine: Engine,
        hand_over: Callable[[Engine, int, Path | None], Awaitable[None]],
        state: RunState,
    ) -> None:
        self._evaluations, self._engine, self._hand_over = evaluations, engine, hand_over
        self._state = state
        self._task: asyncio.Task[None] | None = None

    @property
    def busy(self) -> bool:
        """True while an evaluation is running: its checkpoint must not be deleted."""
        return self._task is not None and not self._task.done()

    async def catch_up(self, iteration: int) -> None:
        """Repeats evaluations that a kill interrupted, on their checkpoints."""
        for earlier in range(iteration):
            settings, folder = self._evaluations.due(earlier, past=True), self._state.record.folder(earlier)
            if settings is not None and folder.exists():
                await self.finish()
                await self._hand_over(self._engine, earlier, folder)
                self._begin(settings, earlier)

    async def run_if_due(self, iteration: int) -> None:
        """Starts to evaluate the current policy, after the previous evaluation has ended."""
        if (settings := self._evaluations.due(iteration)) is not None:
            await self.finish()
            await self._hand_over(self._engine, iteration, None)
            self._begin(settings, iteration)

    def keeps(self, iteration: int) -> bool:
        """Training does not wait: a kill may interrupt the evaluation after later checkpoints were written."""
        return self._evaluations.due(iteration) is not None

    async def finish(self) -> None:
        """Waits for the running evaluation."""
        if self._task is not None:
            await self._task
            self._task = None

    async def close(self) -> None:
        """Cancels the running evaluation."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _begin(self, settings: EvalSettings, iteration: int) -> None:
        self._task = asyncio.create_task(self._evaluations.run(settings, self._engine, iteration))
