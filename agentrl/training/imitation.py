"""Demonstrations that filters ask for, and a supervised step on them after an update."""

from __future__ import annotations

from agentrl.chat.renderer import Renderer
from agentrl.curriculum import Curriculum
from agentrl.curriculum.task_source import TaskSource
from agentrl.rollouts.collector import Collector
from agentrl.rollouts.specs import EpisodeSpec
from agentrl.training.backend import TrainerBackend
from agentrl.training.stages.course import CROSS_ENTROPY
from agentrl.training.stages.record import StageRecord
from agentrl.training.supervised.conversation import SupervisedConversation
from agentrl.types.episode import Episode


class Imitation:
    """One supervised step for each filter that asks for demonstrations, or for turns with other texts."""

    def __init__(
        self,
        curriculum: Curriculum,
        collector: Collector,
        tasks: TaskSource,
        record: StageRecord,
        renderer: Renderer,
        trainer: TrainerBackend,
    ) -> None:
        self._curriculum, self._collector, self._record = curriculum, collector, record
        self._tasks = {task.id: task for task in tasks.tasks}
        self._renderer, self._trainer = renderer, trainer

    async def step(self, iteration: int) -> dict[str, float]:
        """Plays the demonstrations and trains on them. Returns metrics by filter."""
        metrics: dict[str, float] = {}
        for part in self._curriculum.filters:
            if (asked := part.demonstrate()) is None:
                continue
            script, lr, ids = asked
            demos = await self._play(script, f"{self._record.stage.prefix}{part.name}/{iteration:05d}", ids, iteration)
            samples = [sample for demo in demos for sample in SupervisedConversation.of(demo).samples(self._renderer)]
            if samples:
                taught = await self._trainer.fit(samples, CROSS_ENTROPY, lr, fresh=True)
                metrics |= {f"{part.name}_loss": taught["loss"], f"{part.name}_tasks": float(len(demos))}
        for name, lr, corrections in self._curriculum.corrections(iteration):
            told = [SupervisedConversation.of(each.episode).ending(each.turn, each.text) for each in corrections]
            samples = [sample for each in told for sample in each.samples(self._renderer) if sample.loss_mask.any()]
            taught = await self._trainer.fit(samples, CROSS_ENTROPY, lr, fresh=True)
            metrics |= {f"{name}_loss": taught["loss"], f"{name}_turns": float(len(corrections))}
        return metrics

    async def _play(self, script: str, prefix: str, ids: list[str], iteration: int) -> list[Episode]:
        """The scored demonstrations of some tasks, sorted by id. `prefix`: of their ids."""
        specs = [EpisodeSpec(f"{prefix}/{id}#0", f"{prefix}/{id}", self._tasks[id], iteration, "demo") for id in ids]
        parts = self._collector.parts
        parts.check_script(script)  # a filter of the user's own may ask for any
        engine, renderer = parts.scripted_engine(script)
        self._collector.reporter.phase(f"demonstrations by {script!r}", len(specs))
        await self._collector.collect(specs, engine, renderer)
        demos = [e for e in self._record.episodes(iteration, "demo") if e.id.startswith(prefix)]
        return sorted((e for e in demos if e.scored and e.turns), key=lambda e: e.id)
