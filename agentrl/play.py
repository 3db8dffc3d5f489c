"""Playing planned episodes into a run directory, and what they come to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from agentrl.build import Parts
from agentrl.chat.renderer import Renderer
from agentrl.engines.base import Engine
from agentrl.episode.record import Episode
from agentrl.episode.runner import Harness, Plan, Runner
from agentrl.plans import eval_plans, missing
from agentrl.recipe import EvalSettings
from agentrl.sandbox.contract import Backend
from agentrl.sandbox.pool import Pool
from agentrl.store.run_dir import RunDir
from agentrl.task_source import TaskSource
from agentrl.view.progress import Progress


async def play(harness: Harness, plans: list[Plan], run: RunDir, progress: Progress, concurrency: int) -> None:
    """Runs episodes into a run directory; a pool is told beforehand how many sandboxes they will take."""
    if isinstance(harness.backend, Pool) and harness.sandbox_spec is not None:
        harness.backend.prefetch([harness.sandbox_spec] * len(plans))
    runner = Runner(harness, concurrency=concurrency, on_failure=run.add_failure, on_phase=progress.episode_phase)
    async for episode in runner.run(plans):
        run.add(episode)
        progress.episode(episode)


async def evaluate(
    parts: Parts,
    settings: EvalSettings,
    tasks: TaskSource,
    run: RunDir,
    engine: Engine,
    renderer: Renderer,
    backend: Backend | None,
    progress: Progress,
    iteration: int,
) -> dict[str, Any]:
    """Fresh episodes at the evaluation's temperature; the metrics of them."""
    plans = eval_plans(tasks, settings.episodes, iteration)
    progress.phase(f"evaluation after iteration {iteration}", len(plans))
    harness = parts.harness(engine, renderer, backend, temperature=settings.temperature, put_blob=run.put_blob)
    await play(harness, missing(plans, run), run, progress, parts.recipe.concurrency)
    metrics = {"iteration": iteration, "split": "eval", **summary(run.episodes(iteration=iteration, split="eval"))}
    progress.iteration(metrics)
    return metrics


def summary(episodes: Iterable[Episode]) -> dict[str, Any]:
    """Means over the scored episodes, and how many there were of each kind."""
    everything = list(episodes)
    scored = [e for e in everything if e.scored]
    count = len(scored) or 1
    return {
        "episodes": len(everything),
        "failed": len(everything) - len(scored),
        "reward": sum(e.reward or 0.0 for e in scored) / count,
        "success": sum((e.reward or 0.0) >= 1.0 for e in scored) / count,
        "turns": sum(len(e.turns) for e in scored) / count,
        "truncated": sum(e.status == "truncated" for e in scored) / count,
        "sampled_tokens": sum(e.sampled_tokens for e in scored),
    }
