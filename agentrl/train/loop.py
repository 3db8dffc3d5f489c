"""The synchronous loop: roll out, credit, update, checkpoint; again.

Each step may be repeated after a kill: episodes, credit and metrics are keyed, and the checkpoint, written last, is
the commit (docs/architecture.md).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from agentrl.build import Parts, check_training
from agentrl.chat.renderer import Renderer
from agentrl.chat.tokenizer import HFTokenizer
from agentrl.engines.base import Engine
from agentrl.engines.torch import TorchEngine
from agentrl.episode.record import Episode
from agentrl.episode.runner import Plan
from agentrl.errors import TrainError
from agentrl.model import LoadedModel, load_model
from agentrl.plans import iteration_plans, missing, rollout_plans
from agentrl.play import evaluate, play, summary
from agentrl.recipe import Recipe, TrainRecipe
from agentrl.sandbox.contract import Backend
from agentrl.seeds import derive_seed
from agentrl.store.run_dir import RunDir
from agentrl.task_source import load_tasks
from agentrl.train import checkpoint
from agentrl.train.demonstrations import demonstration_row, demonstration_texts
from agentrl.train.row import rows_of
from agentrl.train.trainer import Trainer
from agentrl.view.progress import Progress


class Loop:
    """Training of one recipe in one run directory.

    Args:
        engine_for: makes the engine from the loaded model; default: the embedded torch engine.
    """

    def __init__(
        self,
        parts: Parts,
        run: RunDir,
        progress: Progress,
        *,
        engine_for: Callable[[LoadedModel], Engine] | None = None,
    ) -> None:
        check_training(parts)
        assert parts.recipe.train is not None
        self.parts, self.run, self.progress = parts, run, progress
        self.recipe: Recipe = parts.recipe
        self.settings: TrainRecipe = parts.recipe.train
        self.tasks = load_tasks(self.recipe.tasks, self.recipe.base, self.recipe.seed)
        self.credit = self.recipe.credit.load(self.recipe.base)
        self._engine_for = engine_for or embedded_engine
        self.checkpoints = run.path / "checkpoints"

    async def train(self) -> None:
        """Trains to the end, from wherever the run stands.

        Raises:
            TrainError: the loss is not finite, or an iteration has no scored episode.
        """
        self.backend = self.parts.open_backend()
        try:
            await self._prepare()
            while True:
                if self._evaluation_is_due():
                    await self._evaluate(self.iteration)
                if self.iteration == self.settings.iterations:
                    break
                await self._iterate()
            self.run.update_info(finished=True)
        finally:
            if hasattr(self, "engine"):
                await self.engine.close()
            if self.backend is not None:
                await self.backend.close()

    async def _prepare(self) -> None:
        """Model, trainer, engine: from the newest checkpoint, or from the beginning with the warm start."""
        newest = checkpoint.latest(self.checkpoints)
        if newest is not None:
            model_settings = self.recipe.model.at(newest)  # type: ignore[union-attr]
            self._use(load_model(model_settings, seed=self.recipe.seed))
            saved = checkpoint.load_state(newest)
            self.trainer.load_state_dict(saved.trainer)
            self.iteration = int(saved.extra["iteration"])
            self.progress.note(f"resumed from {newest.name}")
        else:
            self.iteration = 0
            demos = await self._demonstrations()
            texts = demonstration_texts(demos)
            assert self.recipe.model is not None
            self._use(load_model(self.recipe.model, texts=texts, seed=self.recipe.seed))
            if demos:
                self._warm_start(demos)
            self._save()
        self.engine = self._engine_for(self.loaded)
        await self.engine.update(self.loaded.model.state_dict(), self.iteration)

    def _use(self, loaded: LoadedModel) -> None:
        self.loaded = loaded
        self.tokenizer = HFTokenizer(loaded.tokenizer)
        self.renderer: Renderer = self.parts.renderer(self.tokenizer)
        self.trainer = Trainer(loaded.model, self.settings)

    async def _demonstrations(self) -> list[Episode]:
        """Demonstrations of the warm start's script, played in the real environment."""
        warm = self.recipe.warm_start
        if warm is None:
            return []
        engine, renderer = self.parts.scripted_engine(warm.script)
        plans = rollout_plans(self.tasks, warm.episodes, split="demo")
        self.progress.phase(f"demonstrations by {warm.script!r}", len(plans))
        await self._play(plans, engine, renderer, self.backend)
        return sorted((e for e in self.run.episodes(split="demo") if e.scored), key=lambda e: e.id)

    def _warm_start(self, demos: list[Episode]) -> None:
        warm = self.recipe.warm_start
        assert warm is not None
        rows = [demonstration_row(demo, self.renderer) for demo in demos]
        self.progress.phase("warm start on the demonstrations", warm.steps)
        self.trainer.sft(
            rows,
            steps=warm.steps,
            batch=warm.batch,
            lr=warm.lr,
            seed=derive_seed(self.recipe.seed, "warm_start"),
            progress=lambda step, loss: self.progress.step(step, {"loss": loss}),
        )

    async def _iterate(self) -> None:
        started = time.perf_counter()
        plans = iteration_plans(self.tasks, self.iteration, self.settings.groups, self.settings.group_size)
        self.progress.phase(f"iteration {self.iteration + 1}/{self.settings.iterations}", len(plans))
        await self._play(plans, self.engine, self.renderer, self.backend)
        rolled = time.perf_counter()
        # Sorted: the order in which episodes happened to end must not reach the optimiser.
        episodes = sorted(self.run.episodes(iteration=self.iteration, split="train"), key=lambda e: e.id)
        scored = [episode for episode in episodes if episode.scored]
        if not scored:
            raise TrainError(
                f"iteration {self.iteration}: none of {len(episodes)} episodes could be scored",
                remedy=f"agentrl show {self.run.path} lists the failures",
            )
        credits, credit_metrics = self.credit.assign(scored)
        rows = []
        for episode, credit in zip(scored, credits, strict=True):
            self.run.add_credit(episode.id, credit.estimator, credit.turns, credit.parts, iteration=self.iteration)
            rows += rows_of(episode, credit.turns)
        update = self.trainer.update(
            rows,
            seed=derive_seed(self.recipe.seed, "update", self.iteration),
            progress=self.iteration / self.settings.iterations,
        )
        trained = time.perf_counter()
        self.iteration += 1
        metrics = {
            "iteration": self.iteration,
            "split": "train",
            **summary(episodes),
            **credit_metrics,
            **update,
            "rollout_s": rolled - started,
            "train_s": trained - rolled,
        }
        self._add_metrics(metrics)
        if self.iteration % self.settings.checkpoint_every == 0 or self.iteration == self.settings.iterations:
            self._save()
        await self.engine.update(self.loaded.model.state_dict(), self.iteration)
        self.progress.iteration(metrics)

    def _evaluation_is_due(self) -> bool:
        """At the start, at the end, and every so often; once each, also in a run that was killed in between."""
        if self.recipe.eval is None:
            return False
        every = self.recipe.eval.every
        due = self.iteration in (0, self.settings.iterations) or (every > 0 and self.iteration % every == 0)
        return due and not self._has_metrics("eval", self.iteration)

    def _has_metrics(self, split: str, iteration: int) -> bool:
        return any((m["split"], m["iteration"]) == (split, iteration) for m in self.run.metrics())

    async def _evaluate(self, iteration: int) -> None:
        assert self.recipe.eval is not None
        settings = self.recipe.eval
        tasks = self.tasks
        if settings.tasks is not None:
            tasks = load_tasks(settings.tasks, self.recipe.base, self.recipe.seed)
        metrics = await evaluate(
            self.parts, settings, tasks, self.run, self.engine, self.renderer, self.backend, self.progress, iteration
        )
        self._add_metrics(metrics)

    async def _play(self, plans: list[Plan], engine: Engine, renderer: Renderer, backend: Backend | None) -> None:
        harness = self.parts.harness(engine, renderer, backend, put_blob=self.run.put_blob)
        await play(harness, missing(plans, self.run), self.run, self.progress, self.recipe.concurrency)

    def _save(self) -> None:
        self.run.flush()
        checkpoint.save(
            self.checkpoints / f"it-{self.iteration:05d}",
            self.loaded.model,
            self.loaded.tokenizer.save_pretrained,
            self.trainer.state_dict(),
            {"iteration": self.iteration},
        )
        checkpoint.prune(self.checkpoints, keep=2)

    def _add_metrics(self, line: dict[str, Any]) -> None:
        """Adds a line unless a run that was killed before its next checkpoint has already written it."""
        if not self._has_metrics(line["split"], line["iteration"]):
            self.run.add_metrics(line)


def embedded_engine(loaded: LoadedModel) -> Engine:
    """The torch engine on a copy of the model, in this process."""
    import copy

    return TorchEngine(copy.deepcopy(loaded.model), max_context=loaded.max_context)
