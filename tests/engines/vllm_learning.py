"""Training on a vLLM server while it samples: a small asynchronous loop of the library's own parts."""

from __future__ import annotations

import asyncio
import copy
from collections import defaultdict, deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from agentrl.chat.renderer import Renderer
from agentrl.chat.tokenizer import HFTokenizer
from agentrl.config.loader import load_recipe
from agentrl.config.train import TrainSettings
from agentrl.curriculum.task_source import load_tasks
from agentrl.estimators.registry import load_credit
from agentrl.models.load import load_model
from agentrl.rollouts.builder import build
from agentrl.rollouts.engines import engine_of
from agentrl.rollouts.runner import LocalRunner
from agentrl.rollouts.scheduler import RolloutScheduler
from agentrl.rollouts.specs import EpisodeSpec, rollout_specs
from agentrl.training.stages.course import Course
from agentrl.training.supervised.conversation import SupervisedConversation
from agentrl.training.trainer import Trainer
from agentrl.types.episode import Episode
from agentrl.types.sample import TrainingSample, training_samples
from tests.rollouts.world import collect
from tests.training.make import taken

STEPS, GROUPS, SIZE = 20, 8, 8

LEARNING_MODEL = "model={scratch: {hidden: 64, layers: 2, heads: 2, vocab_size: 320, max_context: 256}}"

LEARNING = """\
name: counting
tasks: ./task.py:counts
tools: [./task.py:Counter]
agent: {format: tags, describe_tools: false, max_turns: 8}
rewards: {exact: ./task.py:exact}
scripts: {hasty: ./task.py:hasty}
sampling: {max_tokens: 16}
model: {scratch: {hidden: 64, layers: 2, heads: 2, vocab_size: 320, max_context: 256}}
engine: {use: vllm}
credit: {use: grpo}
train: {lr: 1.0e-3, minibatch: 32, iterations: 1}
concurrency: 128
"""

ADAPTERS = """\
name: counting
tasks: ./task.py:counts
tools: [./task.py:Counter]
agent: {format: tags, describe_tools: false, max_turns: 8}
rewards: {exact: ./task.py:exact}
scripts: {hasty: ./task.py:hasty}
sampling: {max_tokens: 16}
engine: {use: vllm}
credit: {use: grpo}
train: {lora: {rank: 8, alpha: 16}, lr: 5.0e-3, groups: 8, group_size: 8, minibatch: 32, iterations: 10}
concurrency: 128
"""


async def learn(folder: Path, python: str) -> None:
    """Warm start, then `STEPS` updates, each while the next episodes are being played."""
    recipe = load_recipe(str(folder), [f"engine.python={python}"])
    parts = build(recipe)
    tasks = load_tasks(recipe.tasks, recipe.base, recipe.seed)
    demos = await demonstrations(parts, tasks)
    loaded = load_model(
        recipe.model, texts=[text for demo in demos for text in SupervisedConversation.of(demo).texts()], seed=0
    )
    renderer = parts.renderer(HFTokenizer(loaded.tokenizer))
    imitate(loaded.model, renderer, demos)
    trainer = Trainer(loaded.model, recipe.train)
    referee, snapshots = copy.deepcopy(loaded.model), {0: snapshot(loaded.model)}
    engine = engine_of(parts, loaded)
    await engine.update(loaded.model.state_dict(), 0)
    context = parts.context(engine, renderer, None)
    played: asyncio.Queue[Episode] = asyncio.Queue()

    def specs() -> Iterator[EpisodeSpec]:
        for number in range(10**6):
            task = tasks.tasks[number // SIZE % len(tasks.tasks)]
            yield EpisodeSpec(f"g{number // SIZE}#{number % SIZE}", f"g{number // SIZE}", task)

    scheduler = RolloutScheduler(
        LocalRunner(context), concurrency=GROUPS * SIZE, limits=recipe.limits, store=played.put_nowait
    )
    # One for each that is taken: tokens stay at most a few updates old however slow the trainer is.
    planned = specs()
    for _ in range(2 * GROUPS * SIZE):
        scheduler.submit(next(planned))
    credit, rewards, worst, spanning, stale = load_credit(recipe.credit, recipe.base), [], 0.0, 0, 0
    groups: dict[str, list[Episode]] = defaultdict(list)
    try:
        for step in range(STEPS):
            batch: list[Episode] = []
            while len(batch) < GROUPS * SIZE:
                episode = await asyncio.wait_for(played.get(), 120)
                scheduler.submit(next(planned))
                assert episode.scored, episode.error
                groups[episode.group_id].append(episode)
                if len(groups[episode.group_id]) == SIZE:
                    batch += groups.pop(episode.group_id)
            credits, _ = credit.assign(batch)
            rows = [r for e, c in zip(batch, credits, strict=True) for r in training_samples(e, c.turn_advantages)]
            ratio = await asyncio.to_thread(worst_ratio, Trainer(referee, recipe.train), snapshots, rows)
            worst = max(worst, ratio)
            spanning += sum(len({v.version for v in row.versions}) > 1 for row in rows)
            stale += sum(any(v.version < step for v in row.versions) for row in rows)
            rewards.append(float(np.mean([episode.reward for episode in batch])))
            await asyncio.to_thread(trainer.update, rows, seed=step)
            snapshots[step + 1] = snapshot(loaded.model)
            await engine.update(loaded.model.state_dict(), step + 1)
    finally:
        await scheduler.close()
        await engine.close()
    print("\nreward by step:", " ".join(f"{reward:.2f}" for reward in rewards))
    print(
        f"{STEPS * GROUPS * SIZE} episodes, {spanning} of them span versions, {stale} have tokens older than the step"
    )
    print(f"worst |ratio - 1| of a token under its own version: {worst:.2e}")
    assert worst < 1e-3
    assert spanning > 0
    assert np.mean(rewards[-5:]) > np.mean(rewards[:3]) + 0.2


async def demonstrations(parts, tasks) -> list[Episode]:
    engine, renderer = parts.scripted_engine("hasty")
    return await collect(parts.context(engine, renderer, None), rollout_specs(tasks, 120), concurrency=64)


def snapshot(model) -> dict:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def worst_ratio(referee: Trainer, snapshots: dict[int, dict], rows: list[TrainingSample]) -> float:
    """Largest |p_trainer / p_engine - 1| of a sampled token, the trainer's under the version that the engine named."""
    worst = 0.0
    for version in {span.version for row in rows for span in row.versions}:
        referee.model.load_state_dict(snapshots[version])
        for row, logprobs in zip(rows, referee.logprobs(rows), strict=True):
            for span in row.versions:
                if span.version == version:
                    part = slice(span.start, span.end)
                    worst = max(worst, float(np.abs(np.expm1(logprobs[part] - row.behaviour_logprob[part])).max()))
    return worst


def imitate(model: Any, renderer: Renderer, demos: list[Episode]) -> None:
    """Trains the model on demonstrations."""
    samples = [sample for demo in demos for sample in SupervisedConversation.of(demo).samples(renderer)]
    course = Course(samples, steps=250, batch=16, lr=2e-3, seed=0)
    deque(taken(course, Trainer(model, TrainSettings())), maxlen=0)


async def imitating_model(folder: Path) -> None:
    """A small model that has learned from demonstrations, which is what adapters go on; in `folder`/model."""
    recipe = load_recipe(str(folder), [LEARNING_MODEL])
    parts = build(recipe)
    tasks = load_tasks(recipe.tasks, recipe.base, recipe.seed)
    demos = await demonstrations(parts, tasks)
    loaded = load_model(
        recipe.model, texts=[text for demo in demos for text in SupervisedConversation.of(demo).texts()], seed=0
    )
    renderer = parts.renderer(HFTokenizer(loaded.tokenizer))
    imitate(loaded.model, renderer, demos)
    loaded.model.save_pretrained(folder / "model")
    loaded.tokenizer.save_pretrained(folder / "model")
