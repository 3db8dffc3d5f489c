"""The collector: plays the episodes of a recipe into a run directory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentrl.chat.renderer import Renderer
from agentrl.config.recipe import EvalSettings
from agentrl.curriculum.task_source import TaskSource
from agentrl.rollout.builder import Parts
from agentrl.rollout.groups.scorer import GroupScorer
from agentrl.rollout.groups.stored import StoredGroups, unscored_groups
from agentrl.rollout.player import Players
from agentrl.rollout.scheduler import RolloutScheduler
from agentrl.rollout.specs import EpisodeSpec, eval_specs, missing
from agentrl.rollout.summary import summary
from agentrl.store.run_dir import RunDir
from agentrl.types.engine import Engine
from agentrl.types.reporter import Reporter


@dataclass(frozen=True)
class Collector:
    """Collects episodes: whichever engine samples them, they are stored in one run and reported to one reporter.

    Attributes:
        players: where they are played.
    """

    parts: Parts
    run: RunDir
    reporter: Reporter
    players: Players

    def scheduler(
        self, engine: Engine, renderer: Renderer, *, temperature: float | None = None
    ) -> RolloutScheduler[EpisodeSpec]:
        """A scheduler of episodes that the engine samples.

        Args:
            temperature: replaces the recipe's.
        """
        context = replace(
            self.parts.context(engine, renderer, self.players.backend, temperature=temperature),
            put_blob=self.run.put_blob,
            on_failure=self.run.add_failure,
            on_stage=self.reporter.episode_stage,
        )
        recipe, record = self.parts.recipe, StoredGroups(self.run, self.reporter.episode)
        return RolloutScheduler(
            self.players.player(context),
            concurrency=recipe.concurrency,
            limits=recipe.limits,
            store=record.keep,
            groups=self._group_scorer(record),
        )

    def _group_scorer(self, record: StoredGroups) -> GroupScorer[EpisodeSpec] | None:
        """None: no reward looks at groups."""
        rewards, limits = self.parts.rewards, self.parts.recipe.limits
        if not rewards.of_group:
            return None
        return GroupScorer(rewards, record, limits, lambda spec: spec.group_id, on_failure=self.run.add_failure)

    async def collect(
        self, specs: Sequence[EpisodeSpec], engine: Engine, renderer: Renderer, *, temperature: float | None = None
    ) -> None:
        """Plays those of the episodes that the run lacks, and scores those of the groups that were not.

        Raises:
            AgentRLError: as `RolloutScheduler.play_all`.
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
        """Fresh episodes at the evaluation's temperature; the metrics of them.

        Args:
            prefix: what ids begin with: that of the stage.
        """
        specs = eval_specs(tasks, settings.episodes, iteration, prefix)
        self.reporter.phase(f"evaluation after iteration {iteration}", len(specs))
        await self.collect(specs, engine, renderer, temperature=settings.temperature)
        episodes = self.run.episodes(iteration=iteration, split="eval", prefix=prefix)
        return {"iteration": iteration, "split": "eval", **summary(episodes)}
