"""Collector: runs the episodes of a recipe and stores them in a run directory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentrl.chat.processor import OneToken
from agentrl.chat.renderer import Renderer
from agentrl.config.recipe import EvalSettings
from agentrl.curriculum.task_source import TaskSource
from agentrl.rollouts.beliefs import PolicyBeliefs
from agentrl.rollouts.builder import Parts
from agentrl.rollouts.faults.stalls import Stalls
from agentrl.rollouts.groups.scorer import GroupScorer
from agentrl.rollouts.groups.stored import StoredGroups, unscored_groups
from agentrl.rollouts.passes import passes, require_field
from agentrl.rollouts.runner import EpisodeRunners, RememberingRunner
from agentrl.rollouts.scheduler import RolloutScheduler
from agentrl.rollouts.specs import EpisodeSpec, eval_specs, missing
from agentrl.rollouts.summary import summary
from agentrl.sandbox.pool import Pool
from agentrl.store.run_dir import RunDir
from agentrl.types.engine import Engine
from agentrl.types.errors import StoreError
from agentrl.types.reporter import Reporter


@dataclass(frozen=True)
class Collector:
    """Collects episodes of any engine in one run directory.

    Attributes:
        runners: run the episodes, here or on workers.
    """

    parts: Parts
    run: RunDir
    reporter: Reporter
    runners: EpisodeRunners

    def scheduler(
        self, engine: Engine, renderer: Renderer, *, temperature: float | None = None
    ) -> RolloutScheduler[EpisodeSpec]:
        """Makes a scheduler of episodes with an engine.

        Args:
            temperature: overrides the recipe's sampling temperature.

        Raises:
            StoreError: the run converted images to other tokens.
        """
        self._note_processor(renderer)
        stalls = Stalls()
        context = replace(
            self.parts.context(engine, renderer, self.runners.backend, self.runners.speakers, temperature=temperature),
            put_blob=self.run.put_blob,
            get_blob=self.run.get_blob,
            on_failure=self.run.add_failure,
            on_stall=stalls.add,
            on_stage=self.reporter.episode_stage,
        )
        self.reporter.watch("engine", engine.counts)
        self.reporter.watch("conversations", context.conversations.counts)
        if isinstance(self.runners.backend, Pool):
            self.reporter.watch("sandboxes", self.runners.backend.stats)
        recipe, record = self.parts.recipe, StoredGroups(self.run, self.reporter.episode, self.reporter.warning)
        scheduler = RolloutScheduler(
            RememberingRunner(self.runners.for_context(context), engine),
            concurrency=recipe.concurrency,
            limits=recipe.limits,
            store=record.keep,
            groups=self._group_scorer(record, engine, renderer),
            stalls=stalls,
        )
        self.reporter.watch("queue", scheduler.counts)
        return scheduler

    def _note_processor(self, renderer: Renderer) -> None:
        """Records the image processor of the run: the same in all episodes of its policy.

        Demonstrations of scripts belong to no policy: their images are one token each, under any processor.
        """
        if renderer.processor is None:
            return
        mine, noted = dict(renderer.processor.settings), self.run.info.get("processor")
        if noted in (None, OneToken.settings):
            self.run.update_info(processor=mine)
        elif mine not in (noted, OneToken.settings):
            raise StoreError(
                f"the images of this run are tokens by {noted}, now they would be by {mine}",
                place=str(self.run.path),
                remedy="continue with the processor that it has, or give another folder: --out",
            )

    def _group_scorer(
        self, record: StoredGroups, engine: Engine, renderer: Renderer
    ) -> GroupScorer[EpisodeSpec] | None:
        """Makes the scorer of groups; None if no reward scores groups."""
        rewards, limits = self.parts.rewards, self.parts.recipe.limits
        if not rewards.of_group:
            return None
        return GroupScorer(
            rewards,
            record,
            limits,
            lambda spec: spec.group_id,
            on_failure=self.run.add_failure,
            read_blob=self.run.get_blob,
            beliefs=PolicyBeliefs(engine, renderer) if engine.trainable else None,
            decode=renderer.tokenizer.decode,
        )

    async def collect(
        self, specs: Sequence[EpisodeSpec], engine: Engine, renderer: Renderer, *, temperature: float | None = None
    ) -> None:
        """Runs the episodes that are missing in the run, and scores its unscored groups.

        Raises:
            AgentRLError: see `RolloutScheduler.play_all`.
        """
        async with self.scheduler(engine, renderer, temperature=temperature) as scheduler:
            scored = [scheduler.settle(group) for group in unscored_groups(self.parts.rewards, specs, self.run)]
            await scheduler.play_all(missing(specs, self.run))
            for each in scored:
                await each

    async def evaluate(
        self,
        settings: EvalSettings,
        tasks: TaskSource,
        engine: Engine,
        renderer: Renderer,
        iteration: int,
        *,
        prefix: str = "",
    ) -> dict[str, Any]:
        """Runs new episodes at the evaluation's temperature. Returns their metrics.

        Args:
            prefix: prefix of the episode ids, one per stage.

        Raises:
            RecipeError: no task has the field `eval.by`.
        """
        specs = eval_specs(tasks, settings.episodes, iteration, prefix, tries=settings.k)
        if settings.by is not None:
            require_field((spec.task for spec in specs), settings.by)
        self.reporter.phase(f"evaluation after iteration {iteration}", len(specs))
        await self.collect(specs, engine, renderer, temperature=settings.temperature)
        episodes = list(self.run.episodes(iteration=iteration, split="eval", prefix=prefix))
        tried = passes(episodes, settings.k, settings.by)
        return {"iteration": iteration, "split": "eval", **summary(episodes), **tried}
