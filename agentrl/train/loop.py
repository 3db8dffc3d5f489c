"""The synchronous loop: roll out, credit, update, checkpoint; again.

Each step may be repeated after a kill: episodes, credit and metrics are keyed, and the checkpoint, written last, is
the commit (docs/architecture.md).
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import torch

from agentrl.chat.renderer import Renderer
from agentrl.chat.tokenizer import HFTokenizer
from agentrl.config.recipe import Recipe, TrainRecipe
from agentrl.credit.registry import EpisodeCredit, load_credit
from agentrl.curriculum import CreditedEpisode, Curriculum, Group
from agentrl.curriculum.curriculum import load_parts
from agentrl.curriculum.task_source import load_tasks
from agentrl.engines.embedded.engine import TorchEngine
from agentrl.engines.replay import ReplayEngine
from agentrl.engines.vllm.adapters import Adapter, NoAdapters
from agentrl.engines.vllm.engine import VLLMEngine
from agentrl.models.load import LoadedModel
from agentrl.rollout.builder import Parts
from agentrl.rollout.collector import Collector
from agentrl.rollout.engines import engine_of, note_fallback
from agentrl.rollout.player import Players
from agentrl.rollout.specs import EpisodeSpec, iteration_specs
from agentrl.rollout.summary import summary
from agentrl.store.run_dir import RunDir
from agentrl.train import checkpoint
from agentrl.train.auxiliary.models import required_models
from agentrl.train.canary import Canary, canary_of
from agentrl.train.compute_thread import ComputeThread
from agentrl.train.course import CROSS_ENTROPY
from agentrl.train.kl_reward import Penalised, with_kl_reward
from agentrl.train.model.lora import save_adapters
from agentrl.train.model_columns import ModelColumns
from agentrl.train.parallel.ranks import Ranks
from agentrl.train.preflight.checks import check_training
from agentrl.train.spmd import driver_trainer
from agentrl.train.stages.policy import load_policy, pins_of, starting_policy
from agentrl.train.stages.record import StageRecord
from agentrl.train.stages.stage import Stage, is_of, stages_of
from agentrl.train.stages.stopping import reached
from agentrl.train.staleness import staleness
from agentrl.train.supervised.conversation import Conversation
from agentrl.train.truncation import Truncation
from agentrl.types.closing import close_all
from agentrl.types.engine import Engine
from agentrl.types.episode import Episode
from agentrl.types.errors import TrainError
from agentrl.types.reporter import Reporter
from agentrl.types.sample import TrainingSample, mask_turns, training_samples
from agentrl.types.seeds import derive_seed

Result = TypeVar("Result")


class Loop:
    """Reinforcement learning: a stage of a run.

    Args:
        stage: default: the last of the recipe's.
        engine_for: makes the engine from the loaded model; default: that of the recipe.
        ranks: the processes that train the model; this one is the first.
    """

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
        self.stage = stage or stages_of(parts.recipe)[-1]
        check_training(parts, begins=self.stage.index == 0)
        assert parts.recipe.train is not None
        self.record = StageRecord(run, self.stage)
        self.parts, self.run, self.progress = parts, run, progress
        self.collector = Collector(parts, run, progress, players)
        self.recipe: Recipe = parts.recipe
        self.settings: TrainRecipe = parts.recipe.train
        self.tasks = load_tasks(self.recipe.tasks, self.recipe.base, self.recipe.seed)
        self.credit = load_credit(self.recipe.credit, self.recipe.base)
        self.truncation = Truncation(self.settings.truncated, self.settings.timed_out)
        self._refers = self.settings.kl is not None or "ref_logprob" in self.credit.needs
        self._engine_for = engine_for or partial(engine_of, parts.recipe)
        self.ranks = ranks or Ranks()
        # Beside the event loop, which so sees that a placed rank died: a collective over NCCL would wait for it.
        self._thread = ComputeThread() if self.ranks.size > 1 else None
        self.iteration = 0
        self.old_reference = run.path / "reference"  # of runs recorded before there were stages
        self.curriculum = Curriculum(
            load_parts(self.recipe.curriculum, self.recipe.base, self.recipe.scripts),
            seed=self.recipe.seed,
            iterations=self.settings.iterations,
            episode=run.get,
        )

    async def train(self) -> None:
        """Trains to the stage's end, from wherever it stands.

        Raises:
            TrainError: the loss is not finite, or an iteration has no scored episode.
        """
        try:
            await self._prepare()
            while True:
                if self._evaluation_is_due(self.iteration):
                    await self._evaluate(self.iteration)
                if self._is_over():
                    break
                await self._iterate()
            await self._finish()
        finally:
            await self._close()

    async def _finish(self) -> None:
        """What is left to do when the last iteration is over."""

    async def _close(self) -> None:
        await close_all(getattr(self, "engine", None), self._thread)

    async def _compute(self, function: Callable[..., Result], *args: Any) -> Result:
        """Work of the trainer. All of it comes this way: with several ranks its parts must not mix."""
        return function(*args) if self._thread is None else await self._thread.call(function, *args)

    async def _prepare(self) -> None:
        """Model, trainer, engine: from the newest checkpoint, the stage's own or that of the stage before."""
        start = starting_policy(self.recipe, self.settings.lora, self.record.checkpoints)
        saved = None if start.newest is None else checkpoint.load_state(start.newest)
        resumed = saved is not None and is_of(self.stage, saved.extra)
        self.record.pins = pins_of(start, saved.extra if saved is not None and resumed else None, refers=self._refers)
        await self._use(start.loaded)
        await self._compute(start.resume, self.trainer, saved, self.stage)
        if saved is not None and resumed:
            await self._compute(self.columns.load_state_dict, saved.trainer.get("critics", {}))
            self._load_state_dict(saved.extra)
            self.progress.note(f"resumed from {self.record.folder(self.iteration).name}")
        else:
            await self._compute(self._save)
        await self._update_engine()

    async def _update_engine(self) -> None:
        """Hands the policy as it is now to the engine, and sees whether it arrived.

        Raises:
            WeightsLost: it did not.
        """
        await self._hand_over(self.engine)
        if self.canary is not None:
            started = time.perf_counter()
            trained = await self._compute(self.canary.trained, self.trainer)
            self.canary.check(self.iteration, await self.canary.sampled(self.engine), trained)
            self.canary.metrics["canary_s"] = time.perf_counter() - started

    async def _rest(self) -> None:
        """The trainer's turn on GPUs that it shares with servers: they sleep until the next update."""
        if self.recipe.engine.colocate is not None and isinstance(self.engine, VLLMEngine):
            await self.engine.sleep()

    async def _hand_over(self, to: Engine) -> None:
        assert self.recipe.model is not None
        lora, dtype, colocated = self.settings.lora, self.recipe.model.dtype, self.recipe.engine.colocate is not None
        device = "cpu" if colocated else None  # no copy on the GPU, which the servers want back
        weights = partial(self.trainer.weights, dtype, device, checkpoint_names=to.checkpoint_names)
        if colocated:
            torch.cuda.empty_cache()
        if lora is not None and to.takes_adapters:
            own = await self._compute(self.trainer.adapters)
            base = partial(self._compute, partial(weights, adapters=False))
            try:
                return await to.update(
                    Adapter(partial(save_adapters, weights=own, settings=lora), base), self.iteration
                )
            except NoAdapters as refusal:
                self.progress.note(f"LoRA: the engine gets weights merged in {dtype}, because {refusal.message}")
        if lora is None and self.settings.trainable is not None and isinstance(to, TorchEngine) and to.complete:
            await to.update(await self._compute(partial(weights, frozen=False)), self.iteration, whole=False)
        else:
            await to.update(await self._compute(weights), self.iteration)

    async def _use(self, loaded: LoadedModel) -> None:
        self.loaded = loaded
        self.tokenizer = HFTokenizer(loaded.tokenizer)
        self.renderer: Renderer = self.parts.renderer(self.tokenizer)
        self.parts.check_prompts(self.renderer, self.tasks.tasks, loaded.max_context)
        reference = self._reference(loaded) if self._refers else None
        # The engine's model is made first: the trainer may put adapters into its own, or shard it.
        self.engine = self._engine_for(loaded)
        note_fallback(self.engine, self.progress.note)
        make = partial(
            driver_trainer,
            loaded.model,
            self.settings,
            reference=reference,
            base=self.recipe.base,
            ranks=self.ranks,
            auxiliary=required_models(self.settings, self.credit.needs),
        )
        self.trainer = await self._compute(make)
        if self.settings.lora is not None and not self.engine.takes_adapters:
            assert self.recipe.model is not None
            self.progress.note(f"LoRA: the engine gets weights merged in {self.recipe.model.dtype}")
        if self.trainer.unpacked is not None:
            self.progress.note(f"packing: rows (no shared prefixes), because {self.trainer.unpacked}")
        self.columns = ModelColumns(self.credit, self.trainer)
        await self._rest()
        self.canary = self._canary()
        if self.canary is not None:
            self.canary.begin(await self._compute(self.canary.trained, self.trainer))

    def _canary(self) -> Canary | None:
        """None where it is turned off, and for a replay, which takes no weights."""
        if not self.settings.canary or isinstance(self.engine, ReplayEngine):
            return None
        return canary_of(self.parts, self.renderer, self.tasks.tasks, self.loaded.max_context)

    def _reference(self, loaded: LoadedModel) -> Any:
        """The policy that the stage began with."""
        if self.old_reference.exists():
            return load_policy(self.recipe, self.old_reference)
        name = self.record.pins["reference"]
        return copy.deepcopy(loaded.model) if name is None else load_policy(self.recipe, self.record.checkpoints / name)

    def _is_over(self) -> bool:
        """After the last iteration (or beyond, if a longer training is given fewer), or where its stop rule says."""
        return self.iteration >= self.settings.iterations or self._stopped() is not None

    def _stopped(self) -> str | None:
        return reached(self.settings.stop, self.record.lines(self.iteration))

    async def _iterate(self) -> None:
        started = time.perf_counter()
        groups = await self._collect()
        if not groups:
            raise TrainError(
                f"iteration {self.iteration}: no task was drawn",
                place="curriculum",
                remedy="look at its sampler, which gave none",
            )
        if not any(group.episodes for group in groups) and not any(e.scored for e in self._episodes()):
            raise TrainError(
                f"iteration {self.iteration}: none of {len(self._episodes())} episodes could be scored",
                remedy=f"agentrl show {self.run.path} lists the failures",
            )
        await self._rest()
        rolled = time.perf_counter()
        arrived = self.canary.metrics if self.canary is not None else {}  # of the weights that have just sampled
        metrics, update = await self._compute(self._learn, groups)
        metrics |= await self._imitate()
        trained = time.perf_counter()
        episodes = self._episodes()
        self.iteration += 1
        metrics = {
            "iteration": self.iteration,
            "split": "train",
            **summary(episodes),
            **self.truncation.metrics(episodes),
            **metrics,
            **update,
            **self._flow(),
            **arrived,
            "rollout_s": rolled - started,
            "train_s": trained - rolled,
        }
        metrics = self.record.add_line(metrics)
        if self._checkpoint_is_due():
            await self._compute(self._save)
        await self._update_engine()
        self.progress.metrics(metrics)
        if (why := self._stopped()) is not None:
            self.progress.note(f"stage {self.stage.name} ends after {self.iteration} iterations: {why}")

    def _learn(self, groups: list[Group]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Credit and update. Returns the metrics of each."""
        rows, credited, metrics = self._credit(groups)
        if not any(row.advantage.any() for row in rows):
            why = "every advantage is 0" if rows else "no episode was left to train on"
            if self.credit.passes_over(episode for group in groups for episode in group.episodes):
                why += f", and {self.credit.estimator.name} does not read the rewards that turns were given"
            self.progress.note(
                f"iteration {self.iteration + 1}: nothing to learn from, {why} ({_groups_in_words(groups)})"
            )
        update: dict[str, Any] = {"trained_rows": float(len(rows)), **staleness(rows, self.iteration)}
        if rows:  # every group may have been filtered out
            update |= self.trainer.update(
                rows,
                seed=derive_seed(self.recipe.seed, "update", self.iteration),
                progress=self.iteration / self.settings.iterations,
            )
        metrics |= self.curriculum.observe(credited, self.iteration)
        return metrics, update

    def _flow(self) -> dict[str, Any]:
        """Metrics of what trained, and of how rollouts and training wait for each other, beyond the times of both."""
        return {}

    def _checkpoint_is_due(self) -> bool:
        return self.iteration % self.settings.checkpoint_every == 0 or self._is_over()

    async def _collect(self) -> list[Group]:
        """Plays the iteration's groups, and further ones while the curriculum asks for more."""
        wanted, iteration = self.settings.groups, self.iteration
        size, turns = self.settings.group_size, self.recipe.agent.max_turns
        drawn = self.curriculum.draw(self.tasks, wanted, size, turns, iteration)
        rounds = 0
        while True:
            specs = iteration_specs(drawn, iteration, self.stage.prefix)
            self.progress.phase(f"iteration {iteration + 1}/{self.settings.iterations}", len(specs))
            await self.collector.collect(specs, self.engine, self.renderer)
            rounds += 1
            episodes = self._episodes()
            groups = [
                Group(id, group.task, [e for e in episodes if e.group_id == id and self._counts(e)])
                for group, id in zip(drawn, dict.fromkeys(spec.group_id for spec in specs), strict=True)
            ]
            more = self.curriculum.more(groups, wanted, rounds)
            if not more:
                break
            drawn += self.curriculum.draw(self.tasks, more, size, turns, iteration)
        return groups

    def _counts(self, episode: Episode) -> bool:
        """Whether an episode is in its group, and so in the baselines."""
        return episode.scored and self.truncation.of(episode) != "drop"

    def _episodes(self) -> list[Episode]:
        """The iteration's episodes. Sorted: the order in which they happened to end must not reach the optimiser."""
        return sorted(self.record.episodes(self.iteration, "train"), key=lambda e: e.id)

    def _credit(self, groups: list[Group]) -> tuple[list[TrainingSample], list[Group], dict[str, Any]]:
        """The rows that train; the groups with what credit came to; metrics."""
        selected = self.curriculum.select(groups, self.settings.groups, self.iteration)
        chosen = [episode for group in selected for episode in group.episodes]
        penalised, metrics = Penalised(chosen), {}
        if self.settings.kl is not None and self.settings.kl.place == "reward":
            penalised = with_kl_reward(chosen, self.trainer, self.settings.kl, self.credit.penalty_place())
            metrics["kl_ref"] = penalised.kl
        scored = penalised.episodes
        progress = self.iteration / self.settings.iterations
        columns = {**self.columns.of(scored), **penalised.columns}
        credits, credit_metrics = self.credit.assign(scored, columns, progress)
        metrics |= self.columns.learn(scored, credits)
        played = {episode.id for group in groups for episode in group.episodes}
        for episode, credit in zip(chosen, credits, strict=True):
            if episode.id in played:  # one that joined from an earlier iteration keeps its own
                self.run.add_credit(
                    episode.id, credit.estimator, credit.turn_advantages, credit.parts, iteration=self.iteration
                )
        credited = [
            CreditedEpisode(episode, credit)
            for episode, credit in zip(chosen, credits, strict=True)
            if self.truncation.of(episode) != "mask"
        ]
        rows = []
        for each in self.curriculum.refine(credited, self.iteration):
            whole = training_samples(each.episode, each.credit.turn_advantages, each.credit.token_advantages)
            rows += [mask_turns(row, each.masked_turns) for row in whole]
        rows = [row for row in rows if row.loss_mask.any()]
        return rows, _with_advantages(groups, credits), {**metrics, **credit_metrics}

    async def _imitate(self) -> dict[str, float]:
        """One supervised step for each filter that asks for demonstrations."""
        metrics: dict[str, float] = {}
        for part in self.curriculum.filters:
            asked = part.demonstrate()
            if asked is None:
                continue
            script, lr, ids = asked
            tasks = {task.id: task for task in self.tasks.tasks}
            prefix = f"{self.stage.prefix}{part.name}/{self.iteration:05d}"
            specs = [EpisodeSpec(f"{prefix}/{id}#0", f"{prefix}/{id}", tasks[id], self.iteration, "demo") for id in ids]
            engine, renderer = self.parts.scripted_engine(script)
            self.progress.phase(f"demonstrations by {script!r}", len(specs))
            await self.collector.collect(specs, engine, renderer)
            demos = [e for e in self.record.episodes(self.iteration, "demo") if e.id.startswith(prefix)]
            demos = sorted((e for e in demos if e.scored and e.turns), key=lambda e: e.id)
            rows = [Conversation.of(demo).sample(self.renderer) for demo in demos]
            if rows:
                taught = await self._compute(partial(self.trainer.fit, rows, CROSS_ENTROPY, lr, fresh=True))
                metrics |= {f"{part.name}_loss": taught["loss"], f"{part.name}_tasks": float(len(rows))}
        return metrics

    def _evaluation_is_due(self, iteration: int) -> bool:
        """At the start, at the end, and every so often; once each, also in a run that was killed in between."""
        if self.recipe.eval is None:
            return False
        every = self.recipe.eval.every
        last = iteration == self.settings.iterations or (iteration == self.iteration and self._is_over())
        due = iteration == 0 or last or (every > 0 and iteration % every == 0)
        return due and not self.record.has_line("eval", iteration)

    async def _evaluate(self, iteration: int) -> None:
        await self._evaluate_on(self.engine, iteration)

    async def _evaluate_on(self, engine: Engine, iteration: int) -> None:
        assert self.recipe.eval is not None
        settings = self.recipe.eval
        tasks = self.tasks
        if settings.tasks is not None:
            tasks = load_tasks(settings.tasks, self.recipe.base, self.recipe.seed)
        metrics = await self.collector.evaluate(
            settings, tasks, engine, self.renderer, iteration, prefix=self.stage.prefix
        )
        self.progress.metrics(self.record.add_line(metrics))

    def _save(self) -> None:
        self.run.flush()
        if self._refers and self.record.pins["reference"] is None and not self.old_reference.exists():
            self.record.pins["reference"] = self.record.folder(self.iteration).name  # the first stage begins with it
        checkpoint.save(
            self.record.folder(self.iteration),
            self.loaded.model,
            self.loaded.tokenizer.save_pretrained,
            {**self.trainer.state_dict(), "critics": self.columns.state_dict()},
            self._state_dict(),
            weights=self.trainer.weights(device="cpu"),
            lora=self.settings.lora,
        )
        self._prune()

    def _state_dict(self) -> dict[str, Any]:
        """The loop's part of a checkpoint, as JSON values."""
        return self.record.state(self.iteration, curriculum=self.curriculum.state_dict())

    def _load_state_dict(self, state: dict[str, Any]) -> None:
        self.iteration = int(state["iteration"])
        self.curriculum.load_state_dict(state["curriculum"])

    def _prune(self) -> None:
        self.record.prune()


def _groups_in_words(groups: list[Group]) -> str:
    sizes = [len(group.episodes) for group in groups]
    flat = sum(len({episode.reward for episode in group.episodes}) < 2 for group in groups)
    of = f"{min(sizes)} to {max(sizes)}" if min(sizes) < max(sizes) else f"{max(sizes)}"
    return f"{len(groups)} groups of {of} scored episodes, {flat} without a difference in reward"


def _with_advantages(groups: list[Group], credits: Iterable[EpisodeCredit]) -> list[Group]:
    """The groups with the mean |advantage| of their credited episodes."""
    size = {
        credit.episode_id: sum(map(abs, credit.turn_advantages)) / max(len(credit.turn_advantages), 1)
        for credit in credits
    }
    return [
        replace(group, mean_abs_advantages=[size[e.id] for e in group.episodes if e.id in size]) for group in groups
    ]
