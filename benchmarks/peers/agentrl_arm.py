"""agentrl itself: a recipe, the vLLM engine on the mock server, and a run directory, as `agentrl rollout` does it."""

from __future__ import annotations

import asyncio

from agentrl.chat.tokenizer import HFTokenizer
from agentrl.config.recipe import Recipe
from agentrl.curriculum.task_source import load_tasks
from agentrl.engines.vllm.engine import VLLMEngine
from agentrl.engines.vllm.settings import VLLMSettings
from agentrl.rollouts.builder import build
from agentrl.rollouts.collector import Collector
from agentrl.rollouts.runner import LocalRunners
from agentrl.rollouts.specs import rollout_specs
from agentrl.store.run_dir import RunDir
from agentrl.tools.base import tool
from agentrl.types.episode import Episode
from agentrl.types.reporter import Reporter
from agentrl.types.task import Task
from benchmarks.peers.lookup import ANSWER, SYSTEM, Job, Meter, bytes_in, observation, question


@tool
async def lookup(key: str) -> str:
    """Look a key up in the table."""
    return observation(key)


def tasks(n: int) -> list[Task]:
    """The first `n` tasks."""
    return [Task.of(str(number), question(number)) for number in range(n)]


def right(episode: Episode) -> float:
    """1 if the answer is right."""
    return float(ANSWER in (episode.answer or ""))


def recipe(job: Job) -> Recipe:
    """The recipe of the benchmark."""
    return Recipe.model_validate(
        {
            "name": "benchmark",
            "tasks": {"source": f"{__name__}:tasks", "args": {"n": job.episodes}},
            "agent": {"system": SYSTEM, "max_turns": job.turns},
            "tools": [f"{__name__}:lookup"],
            "rewards": {"right": f"{__name__}:right"},
            "concurrency": job.concurrency,
        }
    )


async def main(job: Job) -> None:
    """Warms up in a run directory that is thrown away, then measures in another."""
    made = recipe(job)
    parts = build(made)
    source = load_tasks(made.tasks, made.base, made.seed)
    renderer = parts.renderer(HFTokenizer.load(job.tokenizer))
    engine = VLLMEngine(VLLMSettings(urls=[job.url]), [job.url], tokenizer=renderer.tokenizer)
    progress = Reporter()
    await engine.start()
    with RunDir.create(f"{job.out}-warm-up") as run:
        collector = Collector(parts, run, progress, LocalRunners(None))
        await collector.collect(rollout_specs(source, job.warmup), engine, renderer)
    specs = rollout_specs(source, job.episodes)
    run = RunDir.create(job.out, {"planned": [spec.id for spec in specs]})
    meter = Meter()
    meter.start()
    await Collector(parts, run, progress, LocalRunners(None)).collect(specs, engine, renderer)
    run.close()
    with RunDir.read(job.out) as done:
        good = sum(row.reward == 1.0 for row in done.rows())
    meter.report(right=good, stored=bytes_in(job.out))
    await engine.close()


if __name__ == "__main__":
    asyncio.run(main(Job.from_command_line()))
