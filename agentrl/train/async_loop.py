"""The asynchronous loop: rollouts go on while the trainer works, at most eta updates ahead of it.

The trainer computes in one thread of its own, during which torch lets the event loop run. With several ranks that
thread alone talks to the others, call after call. New weights reach the engine between two of its steps: episodes in
flight go on under them, and their tokens tell which version sampled each.

With eta = 0 the groups of an iteration begin when the update before it is done, and all of them train in it: the
synchronous loop, number by number.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import torch

from agentrl.curriculum import Group
from agentrl.engines.embedded.engine import TorchEngine
from agentrl.models.load import LoadedModel, load_model
from agentrl.rollout.builder import Parts
from agentrl.rollout.player import Players
from agentrl.rollout.scheduler import RolloutScheduler
from agentrl.rollout.specs import EpisodeSpec
from agentrl.store.run_dir import RunDir
from agentrl.train.compute_thread import ComputeThread
from agentrl.train.loop import Loop
from agentrl.train.parallel.ranks import Ranks
from agentrl.train.rollouts import BegunGroup, Rollouts
from agentrl.train.stages.stage import Stage
from agentrl.train.staleness import StalenessPolicy
from agentrl.train.trainer import cast
from agentrl.types.closing import close_all
from agentrl.types.engine import Engine
from agentrl.types.episode import Episode
from agentrl.types.reporter import Reporter


class AsyncLoop(Loop):
    """Training of a recipe that has `train.staleness`. Arguments as `Loop`."""

    def __init__(
        self,
        parts: Parts,
        run: RunDir,
        progress: Reporter,
        players: Players,
        *,
        stage: Stage | None = None,
        engine_for: Callable[[LoadedModel], Engine] | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        super().__init__(parts, run, progress, players, stage=stage, engine_for=engine_for, ranks=ranks)
        assert self.settings.staleness is not None
        self._thread = ComputeThread()
        self.admission = StalenessPolicy(self.settings.staleness, self.settings.iterations)
        self.rollouts: Rollouts | None = None
        self._scheduler: RolloutScheduler[EpisodeSpec] | None = None
        self._drawn = 0  # the groups of all iterations before this one have begun
        self._sizes: dict[int, int] = {}  # groups that were drawn for each of them that has not trained
        self._begun: list[BegunGroup] = []  # by the run before this one
        self._training_on: list[BegunGroup] = []
        self._evaluator: Engine | None = None
        self._evaluation: asyncio.Task[None] | None = None

    async def _prepare(self) -> None:
        await super()._prepare()
        self._scheduler = self.collector.scheduler(self.engine, self.renderer)
        await self._scheduler.__aenter__()
        self.rollouts = Rollouts(self._scheduler, self.run)
        self.rollouts.version = self.iteration
        self.rollouts.begin(self._begun)
        for iteration in range(self.iteration):
            if self._evaluation_is_due(iteration):
                await self._evaluate_again(iteration)

    async def _use(self, loaded: LoadedModel) -> None:
        # Before the trainer changes the model: see Loop.
        if self.recipe.eval is not None and self.recipe.engine.use == "torch":
            self._evaluator = self._engine_for(loaded)
            if not isinstance(self._evaluator, TorchEngine):  # a replay
                self._evaluator = None
        await super()._use(loaded)

    async def _collect(self) -> list[Group]:
        """Begins what may begin, and waits for what this update trains on; for more of it, if the curriculum asks."""
        assert self.rollouts is not None
        wanted, self.rollouts.version = self.settings.groups, self.iteration
        while self._drawn < self.admission.open_until(self.iteration):
            drawn = self._draw(wanted, self._drawn, first=0)
            self._sizes[self._drawn] = len(drawn)
            self.rollouts.begin(drawn)
            self._drawn += 1
        sizes = [self._sizes.get(iteration, wanted) for iteration in range(self.iteration, self._drawn)]
        self.progress.phase(
            f"iteration {self.iteration + 1}/{self.settings.iterations}", sizes[0] * self.settings.group_size
        )
        again = self._trained_before_a_kill()
        taking = self.rollouts.take_all(again) if again else self.rollouts.take(self.admission, sizes)
        self._training_on = await taking
        rounds, next_index = 1, sizes[0]
        while more := self.curriculum.more(groups := self._groups(), wanted, rounds):
            extra = self._draw(more, self.iteration, first=next_index)
            self.rollouts.begin(extra)
            self._training_on += await self.rollouts.take_all(extra)
            rounds, next_index = rounds + 1, next_index + len(extra)
        return groups

    def _trained_before_a_kill(self) -> list[BegunGroup]:
        """What this update has trained on already, if a kill came between its metrics and its checkpoint."""
        assert self.rollouts is not None
        done = (
            m
            for m in self.record.lines(self.iteration + 1)
            if (m["split"], m["iteration"]) == ("train", self.iteration + 1)
        )
        ids = set(next(done, {}).get("trained_groups", []))
        return [group for group in self.rollouts.groups if group.id in ids]

    def _draw(self, count: int, iteration: int, first: int) -> list[BegunGroup]:
        """Groups for an iteration, the first of them with index `first`."""
        size, turns = self.settings.group_size, self.recipe.agent.max_turns
        plans = self.curriculum.draw(self.tasks, count, size, turns, iteration)
        return [BegunGroup(iteration, first + k, plan, self.stage.prefix) for k, plan in enumerate(plans)]

    def _groups(self) -> list[Group]:
        episodes = [e for e in self._episodes() if self._counts(e)]
        return [
            Group(group.id, group.plan.task, [e for e in episodes if e.group_id == group.id])
            for group in self._training_on
        ]

    def _episodes(self) -> list[Episode]:
        """Those of the groups that this update trains on, by id."""
        ids = {group.id for group in self._training_on}
        found: list[Episode] = []
        for iteration in sorted({group.iteration for group in self._training_on}):
            found += [e for e in self.record.episodes(iteration, "train") if e.group_id in ids]
        return sorted(found, key=lambda e: e.id)

    def _flow(self) -> dict[str, Any]:
        assert self.rollouts is not None
        return {"trained_groups": [group.id for group in self._training_on], **self.rollouts.metrics()}

    # -- evaluation beside the training

    async def _evaluate(self, iteration: int) -> None:
        """In the background, on a copy of the policy. On servers, which have none, the trainer waits for it."""
        if self._evaluator is None:
            await super()._evaluate(iteration)
            return
        await self._evaluation_ends()
        await self._hand_over(self._evaluator)
        self._evaluation = asyncio.create_task(self._evaluate_on(self._evaluator, iteration))

    async def _evaluate_again(self, iteration: int) -> None:
        """An evaluation that a kill cut short, by the checkpoint that was kept for it."""
        folder = self.record.folder(iteration)
        if self._evaluator is None or not folder.exists():
            return
        assert self.recipe.model is not None
        await self._evaluation_ends()
        then = load_model(self.recipe.model.at(folder).for_training(), seed=self.recipe.seed).model
        await self._evaluator.update(cast(then.state_dict(), getattr(torch, self.recipe.model.dtype)), iteration)
        self._evaluation = asyncio.create_task(self._evaluate_on(self._evaluator, iteration))

    async def _evaluation_ends(self) -> None:
        if self._evaluation is not None:
            await self._evaluation
            self._evaluation = None

    def _checkpoint_is_due(self) -> bool:
        return super()._checkpoint_is_due() or self._evaluation_is_due(self.iteration)

    def _prune(self) -> None:
        if self._evaluation is None or self._evaluation.done():
            super()._prune()

    # -- going on, and the end

    def _state_dict(self) -> dict[str, Any]:
        """With the groups that have begun; their episodes are in the run directory as they end."""
        groups = self.rollouts.groups if self.rollouts is not None else []
        return {
            **super()._state_dict(),
            "drawn": self._drawn,
            "sizes": [[iteration, size] for iteration, size in self._sizes.items() if iteration >= self.iteration],
            "groups": [group.state_dict() for group in groups],
        }

    def _load_state_dict(self, state: dict[str, Any]) -> None:
        super()._load_state_dict(state)
        # A run that trained in turns until now had begun what it had trained on.
        self._drawn = state.get("drawn", self.iteration)
        self._sizes = {iteration: size for iteration, size in state.get("sizes", [])}
        self._begun = [BegunGroup.from_state(each, self.stage.prefix) for each in state.get("groups", [])]

    async def _finish(self) -> None:
        await self._evaluation_ends()

    async def _close(self) -> None:
        if self._evaluation is not None:
            self._evaluation.cancel()
            await asyncio.gather(self._evaluation, return_exceptions=True)
        await close_all(self._scheduler, self._evaluator)
        await super()._close()
