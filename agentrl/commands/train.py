"""`agentrl train`: the loop, in a run directory; the same command again continues."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from agentrl.commands.runs import closing, open_run
from agentrl.config.loader import load_recipe
from agentrl.config.recipe import Recipe
from agentrl.curriculum.curriculum import Curriculum, load_parts
from agentrl.curriculum.task_source import load_tasks
from agentrl.distributed.worker_pool import open_players
from agentrl.reporters.registry import trackers
from agentrl.reporters.reporting import reporting
from agentrl.reporters.terminal import Terminal
from agentrl.rollout.builder import build
from agentrl.rollout.specs import EpisodeSpec, iteration_specs
from agentrl.store.run_dir import RunDir
from agentrl.train.preflight.checks import check_training
from agentrl.train.preflight.warnings import cautions
from agentrl.types.engine import Engine
from agentrl.types.errors import RecipeError, needs

if TYPE_CHECKING:
    from agentrl.models.load import LoadedModel


def train(name: str, overrides: list[str], *, out: Path | None, engine: str | None) -> Path | None:
    """Trains a recipe. Returns the run directory; None in a process that followed another's training."""
    recipe = load_recipe(name, overrides)
    path = out or Path("runs") / recipe.name
    return path if train_into(path, recipe, engine=engine) else None


def train_into(path: Path, recipe: Recipe, *, engine: str | None = None) -> bool:
    """Trains into `path`, from wherever the run there stands; then draws its learning curve.

    Args:
        engine: `replay:RUN` trains on the episodes of a stored run; default: the recipe's engine.

    Returns:
        Whether this process led. Of those that torchrun started only the first does.
    """
    with needs("train"):
        from agentrl.distributed.ranks import trainer_ranks
        from agentrl.distributed.servers import LaunchedServers
        from agentrl.rollout.engines import check_servers, engine_of
        from agentrl.train.async_loop import AsyncLoop
        from agentrl.train.loop import Loop
        from agentrl.train.parallel.ranks import Ranks
        from agentrl.train.spmd import worker_loop
    from agentrl.view.curves import learning_curve

    joined = Ranks.from_torchrun()
    if joined.rank:
        worker_loop(joined)
        return False
    parts = build(recipe)
    check_training(parts)
    tracked = trackers(recipe)
    assert recipe.train is not None
    if engine is None:
        check_servers(recipe)
    engine_for = (
        _replay(engine, recipe) if engine is not None else partial(engine_of, recipe, launch_servers=LaunchedServers)
    )

    staleness = recipe.train.staleness

    async def learn() -> None:
        async with open_players(parts, progress.note) as players, trainer_ranks(recipe, joined) as placed:
            kind = Loop if staleness is None else AsyncLoop
            await placed.train(kind(parts, run, progress, players, engine_for=engine_for, ranks=placed.ranks).train())

    run = open_run(path, recipe, "train", engine=engine)
    with closing(run):
        with reporting(run, recipe, Terminal(), *tracked) as progress:
            for caution in cautions(parts):
                progress.warning(caution)
            asyncio.run(learn())
        learning_curve(run.metrics(), path / "curve.png", title=recipe.name)
    return True


def _replay(engine: str, recipe: Recipe) -> Callable[[LoadedModel], Engine]:
    """Makes the engine that says a stored run again.

    Raises:
        RecipeError: `engine` names none, or one without probabilities.
        StoreError: it is no run, or lacks the episodes of the first iteration: it is another training's.
    """
    from agentrl.engines.replay import ReplayEngine

    kind, _, argument = engine.partition(":")
    if kind != "replay" or not argument:
        raise RecipeError(f"training has no engine {engine!r}", place="--engine", remedy="replay:RUN")
    replay = ReplayEngine(RunDir.read(Path(argument)))
    if not replay.trainable:
        raise RecipeError(
            f"{argument} was played by a script or an API: its tokens have no probabilities to train on",
            place="--engine",
            remedy="replay a run of the torch or vllm engine",
        )
    replay.require(spec.id for spec in _first_iteration(recipe))
    return lambda loaded: replay


def _first_iteration(recipe: Recipe) -> list[EpisodeSpec]:
    assert recipe.train is not None
    tasks = load_tasks(recipe.tasks, recipe.base, recipe.seed)
    parts = load_parts(recipe.curriculum, recipe.base, recipe.scripts)
    curriculum = Curriculum(parts, seed=recipe.seed, iterations=recipe.train.iterations)
    size, turns = recipe.train.group_size, recipe.agent.max_turns
    return iteration_specs(curriculum.draw(tasks, recipe.train.groups, size, turns, 0), 0)
