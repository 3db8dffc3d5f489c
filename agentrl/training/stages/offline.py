"""A supervised or preference stage: its data, its steps, its checkpoints.

demonstrations, file or run -> samples -> Course -> TrainerBackend.fit, step by step -> metrics line -> checkpoint

Step k depends only on the settings and k (`Course`): a stage resumes at the step after its newest checkpoint. The
checkpoint also holds the metrics of steps that the next line of metrics will include.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

from agentrl.config.stages import OfflineStage, PreferenceStage, SftStage
from agentrl.config.train import TrainSettings
from agentrl.rollouts.collector import Collector
from agentrl.rollouts.runner import EpisodeRunners
from agentrl.rollouts.specs import rollout_specs
from agentrl.store.checkpoints import about, latest
from agentrl.store.run_dir import RunDir
from agentrl.training import checkpoint
from agentrl.training.backend import Start, TrainerBackend, TrainingJob
from agentrl.training.compute_thread import compute_of
from agentrl.training.parallel.ranks import Ranks
from agentrl.training.stages.course import Course
from agentrl.training.stages.data import (
    Example,
    examples_of,
    fitting,
    offline_loss,
    parser_of,
    preference_loss,
    stored_for,
)
from agentrl.training.stages.plan import StagePlan
from agentrl.training.stages.policy import start_of
from agentrl.training.stages.record import StageRecord
from agentrl.training.stages.stage import is_of
from agentrl.training.stages.stopping import reached
from agentrl.types.closing import close_all
from agentrl.types.episode import Episode
from agentrl.types.errors import TrainError
from agentrl.types.reporter import Reporter
from agentrl.types.sample import TrainingSample
from agentrl.types.seeds import derive_seed

SUMS = ("tokens", "forwarded", "train_s")
"""Step metrics that a line of metrics sums; it averages the others."""


class OfflineTraining:
    """One stage. All stages of a run share the run directory.

    Args:
        runners: play the demonstrations.
        ranks: the processes that train the model; this process is rank 0.
    """

    def __init__(
        self,
        plan: StagePlan,
        run: RunDir,
        reporter: Reporter,
        runners: EpisodeRunners,
        *,
        ranks: Ranks | None = None,
    ) -> None:
        stage = plan.stage
        assert isinstance(stage.settings, SftStage | PreferenceStage)
        self.stage, self.parts, self.run, self.reporter = stage, plan.parts, run, reporter
        self._make_trainer = plan.trainer.make
        self.runners = runners
        self.settings: OfflineStage = stage.settings
        self.recipe = stage.recipe
        self.loss = preference_loss(stage) if isinstance(stage.settings, PreferenceStage) else None
        self._loss_settings = stage.settings.loss
        self.ranks = ranks or Ranks()
        self._compute = compute_of(self.ranks.size)
        self.record = StageRecord(run, stage)
        self.step = 0
        self._since: list[dict[str, float]] = []  # metrics of steps since the last line

    async def train(self) -> None:
        """Trains the stage to its end; resumes it if it has a checkpoint.

        Raises:
            TrainError: the stage has no examples, or the loss is not finite.
        """
        if self._has_ended():
            return
        async with AsyncExitStack() as stack:
            stack.push_async_callback(close_all, self._compute)
            course = await self._prepare(stack)
            steps = course.steps_from(self.step)
            self.reporter.phase(self._title(course), course.steps)
            while self.step < course.steps and not await self._take(steps):
                pass
            await self._save(ended=True)
            self.reporter.note(f"stage {self.stage.name} ended after {self.step} steps{self._why()}")

    def _has_ended(self) -> bool:
        newest = latest(self.record.checkpoints)
        if newest is None:
            return False
        said = about(newest)
        return is_of(self.stage, said) and bool(said["ended"])

    def _title(self, course: Course) -> str:
        episodes = len({sample.episode_id for sample in course.samples})
        single = "conversations" if getattr(self.settings, "text", None) is None else "texts"
        what = f"{episodes // 2} pairs" if course.pairs else f"{episodes} {single}"
        return f"{self.stage.name}: {self.stage.kind} on {what}"

    def _why(self) -> str:
        why = reached(self.settings.stop, self.record.lines(self.step))
        return f": {why}" if why else ""

    # -- model and data

    async def _prepare(self, stack: AsyncExitStack) -> Course:
        """Resumes the trainer, which the stack closes, and reads the samples."""
        examples = await self._examples()
        texts = [text for example in examples for text in example.conversation.texts()]
        refers = "reference" in offline_loss(self.stage).needs
        start, saved = start_of(self.record, self.settings.train.lora, refers=refers, texts=texts)
        self.trainer: TrainerBackend = self._make_trainer(job=self._job(start))
        stack.push_async_callback(close_all, self.trainer)
        loaded = await self.trainer.open()
        if saved is not None and start.resumes:
            self.step, self._since = int(saved.extra["iteration"]), list(saved.extra["since"])
            self.reporter.note(f"resumed from {self.record.folder(self.step).name}")
        await self.trainer.begin()
        if saved is not None:
            await self.trainer.load(saved.trainer)
        if refers and self.record.pins["reference"] is None:  # the first stage, at its beginning
            self.record.pins["reference"] = self.record.folder(0).name
            await self._save()
        renderer = self.parts.renderer(loaded.chat())
        if getattr(self.settings, "script", None) is not None:
            self.parts.check_prompts(renderer, self.parts.tasks.tasks, loaded.max_context)
        pairs = self.loss is not None and self.loss.paired
        samples = fitting(examples, renderer, loaded.max_context, self.reporter.note, paired=pairs)
        return self._course(samples, pairs)

    def _job(self, start: Start) -> TrainingJob:
        return TrainingJob(
            recipe=self.recipe,
            settings=TrainSettings(lr=self.settings.lr, **self.settings.train.model_dump()),
            start=start,
            needs=(),
            ranks=self.ranks,
            compute=self._compute,
            image=self.run.get_blob,
            note=self.reporter.note,
        )

    def _course(self, samples: Sequence[Any], pairs: bool) -> Course:
        settings = self.settings
        episodes = len({sample.group_id if pairs else sample.episode_id for sample in samples})
        return Course(
            samples,
            settings.steps_over(episodes),
            settings.batch,
            settings.lr,
            derive_seed(self.recipe.seed, self.stage.name),
            self._loss_settings,
            pairs,
            settings.lr_schedule,
            3 if self.loss is not None and self.loss.gold else 2,
        )

    async def _examples(self) -> list[Example]:
        parser, demonstrations = parser_of(self.parts), await self._demonstrations()
        with stored_for(self.stage, self.run) as stored:
            examples = examples_of(self.stage, parser, stored, demonstrations)
        if not examples:
            raise TrainError(f"stage {self.stage.name}: nothing to learn from, no episode could be scored")
        return examples

    async def _demonstrations(self) -> list[Episode]:
        """Demonstrations of the stage's script, played in the real environment."""
        settings = self.stage.settings
        if not isinstance(settings, SftStage) or settings.script is None:
            return []
        engine, renderer = self.parts.scripted_engine(settings.script)
        specs = rollout_specs(self.parts.tasks, settings.episodes, split="demo", prefix=self.stage.prefix)
        self.reporter.phase(f"demonstrations by {settings.script!r}", len(specs))
        await Collector(self.parts, self.run, self.reporter, self.runners).collect(specs, engine, renderer)
        rows = [row.id for row in self.run.rows(split="demo") if row.id.startswith(f"{self.stage.prefix}demo/")]
        return sorted((e for e in self.run.episodes(rows) if e.scored), key=lambda episode: episode.id)

    # -- steps

    async def _take(self, steps: Iterator[tuple[list[TrainingSample], float]]) -> bool:
        """Takes one step. Returns whether the stage ends with it."""
        started = time.perf_counter()
        samples, lr = next(steps)
        found = await self.trainer.fit(samples, self._loss_settings, lr)
        await asyncio.sleep(0)  # lets Ctrl-C take effect
        self.step += 1
        self._since.append({**found, "train_s": time.perf_counter() - started})
        self.reporter.step(self.step, {name: found[name] for name in ("loss", "accuracy") if name in found})
        told = self.step % self.settings.metrics_every == 0
        if told:
            self._tell()
        why = reached(self.settings.stop, self.record.lines(self.step)) if told else None
        if self.step % self.settings.checkpoint_every == 0 and why is None:
            await self._save()
        return why is not None

    def _tell(self) -> None:
        """Writes a line of metrics over the steps since the last line, unless a killed run has written it already."""
        line = {"iteration": self.step, "split": self.stage.kind, **_summed_up(self._since)}
        self._since = []
        self.reporter.metrics(self.record.add_line(line))

    async def _save(self, ended: bool = False) -> None:
        if ended and self._since:
            self._tell()
        folder, extra = self.record.folder(self.step), self.record.state(self.step, ended=ended, since=self._since)
        await self._compute.call(self.run.flush)
        with checkpoint.writing(folder) as new:
            state = await self.trainer.save(new, resumes=not ended)
            await self._compute.call(checkpoint.complete, new, folder, state, extra)
        await self._compute.call(self.record.prune)


def _summed_up(steps: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Sums or means of the step metrics."""
    names = dict.fromkeys(name for step in steps for name in step)
    known = {name: [step[name] for step in steps if name in step] for name in names}
    return {name: sum(values) / (1 if name in SUMS else len(values)) for name, values in known.items()}
