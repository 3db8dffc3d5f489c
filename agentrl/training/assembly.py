"""Wires the parts of a training together. No other module knows all of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from agentrl.chat.renderer import Renderer
from agentrl.config.agent import PolicySettings
from agentrl.config.recipe import TrainingRecipe
from agentrl.curriculum import Curriculum
from agentrl.curriculum.task_source import TaskSource
from agentrl.models.load import LoadedModel
from agentrl.rollouts.auxiliary.open import opponent_pools_of
from agentrl.rollouts.collector import Collector
from agentrl.rollouts.conversation.policies import TrainedPolicy
from agentrl.rollouts.engines import engine_of, note_fallback
from agentrl.rollouts.runner import EpisodeRunners
from agentrl.store.run_dir import RunDir
from agentrl.training.backend import Start, TrainerBackend, TrainingJob
from agentrl.training.batch.builder import BatchBuilder
from agentrl.training.batch.credit_giver import CreditGiver
from agentrl.training.batch.recorded import RecordedGroups
from agentrl.training.batch.recorded_buffer import RecordedBuffer
from agentrl.training.batch.second_policy import SecondPolicy
from agentrl.training.batch.second_policy_batch import SecondPolicyBuilder
from agentrl.training.batch.truncation import Truncation
from agentrl.training.canary import ROWS, Canary, canary_of
from agentrl.training.compute_thread import compute_of
from agentrl.training.evaluator import BackgroundEvaluator, BlockingEvaluator, Evaluations, Evaluator
from agentrl.training.imitation import Imitation
from agentrl.training.loop import TrainingLoop
from agentrl.training.losses.loss import read_by
from agentrl.training.parallel.ranks import Ranks
from agentrl.training.publisher import Follower, WeightPublisher
from agentrl.training.rollout_buffer import GroupBuffer, GroupSource, RolloutBuffer
from agentrl.training.run_state import RunState
from agentrl.training.stages.plan import RlPlan
from agentrl.training.staleness import StalenessPolicy
from agentrl.types.closing import Closable, close_all
from agentrl.types.engine import Engine
from agentrl.types.errors import RecipeError
from agentrl.types.reporter import Reporter

Part = TypeVar("Part", bound=Closable)


@asynccontextmanager
async def training(
    plan: RlPlan,
    run: RunDir,
    reporter: Reporter,
    runners: EpisodeRunners,
    *,
    engine_for: Callable[[LoadedModel], Engine] | None = None,
    ranks: Ranks | None = None,
    recorded: RecordedGroups | None = None,
) -> AsyncIterator[TrainingLoop]:
    """The training loop of a stage of reinforcement learning, resumed if the run has begun. Closed with the block.

    Args:
        runners: play the episodes.
        engine_for: makes an engine from the loaded model; default: the recipe's engine.
        ranks: the processes that train the model; this process is rank 0.
        recorded: groups to train on; default: fresh rollouts.

    Raises:
        AgentRLError: the run cannot be continued.
    """
    async with AsyncExitStack() as stack:
        assembly = _Assembly(plan, run, reporter, runners, ranks or Ranks(), stack, recorded)
        loop = await assembly.loop(engine_for or partial(engine_of, plan.parts))
        await loop.publisher.publish(loop.iteration)
        loop.buffer.resume()
        yield loop


def works_beside(recipe: TrainingRecipe) -> bool:
    """Returns True if rollouts continue while the trainer computes, which then runs in a separate thread."""
    return recipe.train.max_staleness > 0 or recipe.train.stream


class _Assembly:
    """Builds the parts of a training: first those without a model, then the others."""

    def __init__(
        self,
        plan: RlPlan,
        run: RunDir,
        reporter: Reporter,
        runners: EpisodeRunners,
        ranks: Ranks,
        stack: AsyncExitStack,
        recorded: RecordedGroups | None,
    ) -> None:
        self.plan, self.recipe, self.parts, self.run = plan, plan.recipe, plan.parts, run
        self.reporter, self.ranks, self.stack = reporter, ranks, stack
        self.recorded = recorded
        self.tasks = plan.parts.tasks if recorded is None else TaskSource([])
        self.credit = plan.parts.credit
        self.curriculum = Curriculum(
            plan.parts.make_curriculum(),
            seed=plan.recipe.seed,
            iterations=plan.recipe.train.iterations,
            episode=run.get,
            of_stage=lambda name: run.episodes(split="train", prefix=f"{name}/"),
        )
        self.collector = Collector(plan.parts, run, reporter, runners)
        self.compute = self._closed(compute_of(ranks.size, beside=works_beside(plan.recipe)))

    async def loop(self, engine_for: Callable[[LoadedModel], Engine]) -> TrainingLoop:
        """The loop, new or resumed. Engines are made first: the trainer may add adapters to the model or shard it."""
        refers = "reference" in read_by(self.plan.loss, self.recipe.train) or "ref_logprob" in self.credit.needs
        beside = {name: each for name, each in self.recipe.policies.items() if each.train}
        state = RunState(self.plan.stage, self.recipe, self.run, refers=refers or bool(beside))
        trainer = self._trainer(self.recipe, replace(state.start, refers=refers))
        loaded = await trainer.open()
        renderer = self.parts.renderer(loaded.chat())
        self.parts.check_prompts(renderer, self.tasks.tasks, loaded.max_context)
        engine = self._closed(engine_for(loaded))
        if self.recipe.train.stream and engine.shares_gpu:
            raise RecipeError(
                "the trainer waits until the engine, which has the same GPU, rests",
                place="train.stream",
                remedy="train.stream=false, or an engine on another GPU",
            )
        note_fallback(engine, self.reporter.note)
        second = self._second_engine(engine, engine_for, loaded)
        await trainer.begin()
        first = Start(state.start.reference, resumes=state.start.resumes, refers=refers)
        second_policies: dict[str, SecondPolicy] = {}
        for name, settings in beside.items():
            second_policies[name] = await self._second_policy(name, settings, first, renderer)
        canary = self._canary(engine, renderer, loaded)
        followers: list[Follower] = [each.publisher.publish for each in second_policies.values()]
        for pool in opponent_pools_of(self.collector.runners.speakers):
            pool.follow(state.record.folder)
            followers.append(pool.turn_to)
        publisher = WeightPublisher(self.recipe, trainer, engine, canary, self.reporter, followers)
        await publisher.begin()
        loop = TrainingLoop(
            self.recipe,
            self.reporter,
            self.compute,
            self.curriculum,
            await self._buffer(engine, renderer, state),
            BatchBuilder(
                self.recipe.train,
                self.run,
                self.reporter,
                self.curriculum,
                self.credit,
                CreditGiver(self.recipe.train, self.credit, trainer, self.compute, renderer),
                {name: each.builder for name, each in second_policies.items()},
            ),
            trainer,
            Imitation(self.curriculum, self.collector, self.tasks, state.record, renderer, trainer),
            publisher,
            self._evaluator(engine, second, renderer, publisher, state),
            state,
            second_policies,
        )
        await self._restore(loop)
        return loop

    async def _restore(self, loop: TrainingLoop) -> None:
        saved = await loop.state.resume(loop.trainer, loop.second_policies)
        if saved is None:
            return await loop.commit()
        loop.load_state_dict(saved)
        self.reporter.note(f"resumed from {loop.state.record.folder(loop.iteration).name}")

    def _second_engine(
        self, first: Engine, engine_for: Callable[[LoadedModel], Engine], loaded: LoadedModel
    ) -> Engine | None:
        """An engine for evaluations in the background; None if training waits for them. Servers hold only one policy at
        a time, a replay contains only one training, and a stop rule on evaluations must not depend on their timing."""
        stop = self.recipe.train.stop
        beside = self.recipe.eval is not None and self.recipe.train.max_staleness > 0 and first.holds_weights
        if not beside or (stop is not None and stop.evaluates):
            return None
        return self._closed(engine_for(loaded))

    async def _second_policy(
        self, name: str, settings: PolicySettings, start: Start, renderer: Renderer
    ) -> SecondPolicy:
        """Builds the trainer of an auxiliary policy, which plays from now on.

        Args:
            start: the main policy at the start of the stage.
        """
        lora, speakers = settings.lora, self.collector.runners.speakers
        if lora is None or speakers is None:
            raise RecipeError(
                "a second policy needs runners that have policies",
                place=f"policies.{name}",
                remedy="async with open_runners(parts, trains=True) as runners (agentrl.distributed.worker_pool)",
            )
        own: dict[str, Any] = {"lora": lora, "trainable": None, "freeze_vision_tower": False}
        train = self.recipe.train.model_copy(update=own)
        recipe = self.recipe.model_copy(update={"train": train})
        trainer = self._trainer(recipe, start)
        loaded = await trainer.open()
        engine = self._closed(engine_of(replace(self.parts, recipe=recipe), loaded))
        await trainer.begin()
        sampling = self.parts.sampling(renderer, settings.sampling or recipe.sampling)
        speakers.trained[name] = TrainedPolicy(name, engine, renderer, sampling)
        giver = CreditGiver(train, self.credit, trainer, self.compute, renderer)
        canary = self._canary(engine, renderer, loaded)
        publisher = WeightPublisher(recipe, trainer, engine, canary, self.reporter)
        await publisher.begin()
        return SecondPolicy(
            name, trainer, SecondPolicyBuilder(name, settings, giver, Truncation.of_settings(train)), publisher
        )

    def _trainer(self, recipe: TrainingRecipe, start: Start) -> TrainerBackend:
        job = TrainingJob(
            recipe=recipe,
            settings=recipe.train,
            start=start,
            needs=self.credit.needs,
            ranks=self.ranks,
            compute=self.compute,
            image=self.run.get_blob,
            note=self.reporter.note,
        )
        trainer: TrainerBackend = self.plan.trainer.make(job=job)
        return self._closed(trainer)

    def _canary(self, engine: Engine, renderer: Renderer, loaded: LoadedModel) -> Canary | None:
        """The canary; None if it is turned off, for an engine that takes no weights (a replay), and if none change."""
        unchanged = self.plan.trainer.plug_in.capabilities.memory
        if not self.recipe.train.canary or not engine.takes_weights or unchanged:
            return None
        # If the environment gives all messages, the prompt is not known yet: any text will do.
        openings = [self.parts.opening(t) or [{"role": "user", "content": t.id}] for t in self.tasks.tasks[:ROWS]]
        whole = [renderer.start(opening) for opening in openings]
        prompts = [[token for token in prompt if token >= 0] for prompt in whole]  # without images
        return canary_of(self.recipe, prompts, loaded.max_context)

    async def _buffer(self, engine: Engine, renderer: Renderer, state: RunState) -> GroupBuffer:
        if self.recorded is not None:
            self.recorded.check(renderer)
            counts = Truncation.of_settings(self.recipe.train).counts
            return RecordedBuffer(self.recorded, self.run, self.recipe.train.groups, counts)
        settings, turns, draw = self.recipe.train, self.recipe.agent.max_turns, self.curriculum.draw
        source = GroupSource(
            draw=lambda count, iteration: draw(self.tasks, count, settings.group_size, turns, iteration),
            more=lambda groups, rounds: self.curriculum.more(groups, settings.groups, rounds),
            counts=Truncation.of_settings(settings).counts,
            size=settings.groups,
            further=settings.over_provision,
            further_groups=settings.over_provision_groups,
        )
        scheduler = await self.stack.enter_async_context(self.collector.scheduler(engine, renderer))
        policy = StalenessPolicy(settings.max_staleness, settings.iterations)
        return RolloutBuffer(scheduler, source, policy, state.record, self.reporter)

    def _evaluator(
        self, engine: Engine, second: Engine | None, renderer: Renderer, publisher: WeightPublisher, state: RunState
    ) -> Evaluator:
        evaluations = Evaluations(self.plan, self.collector, renderer, state)
        if second is None:
            return BlockingEvaluator(evaluations, engine)
        return self._closed(BackgroundEvaluator(evaluations, second, publisher.hand_over, state))

    def _closed(self, part: Part) -> Part:
        """Registers a part to be closed with the training, in reverse order."""
        self.stack.push_async_callback(close_all, part)
        return part
