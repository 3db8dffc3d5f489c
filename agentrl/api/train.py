"""Training in a run directory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from agentrl.api import event_loop
from agentrl.api.recipes import Overrides, given_recipe
from agentrl.api.run import Run
from agentrl.api.run_dirs import begin_run, closing
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
from agentrl.types.reporter import Reporter

if TYPE_CHECKING:
    from agentrl.models.load import LoadedModel


def train(
    recipe: str | Path | Recipe,
    *,
    overrides: Overrides = (),
    engine: str | None = None,
    out: str | Path | None = None,
    reporters: Sequence[Reporter] | None = None,
) -> Run | None:
    """Trains a recipe in a run directory, from wherever the run there stands; then draws its learning curve.

    Args:
        engine: `replay:RUN` trains on the episodes of a stored run; default: the recipe's engine.
        out: the run directory; default: `runs/NAME`.
        recipe, overrides, reporters: as for `rollout`.

    Returns:
        The run; None in the further processes that torchrun started, which worked for the first.

    Raises:
        AgentRLError: something is wrong with the recipe, too many episodes failed, or training cannot go on.
    """
    recipe = given_recipe(recipe, overrides)
    path = Path(out) if out is not None else Path("runs") / recipe.name
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
        return None
    parts = build(recipe)
    check_training(parts)
    told = [*([Terminal()] if reporters is None else reporters), *trackers(recipe)]
    assert recipe.train is not None
    if engine is None:
        check_servers(recipe)
    engine_for = (
        _replay(engine, recipe) if engine is not None else partial(engine_of, recipe, launch_servers=LaunchedServers)
    )

    staleness = recipe.train.staleness

    async def learn() -> None:
        async with open_players(parts) as players, trainer_ranks(recipe, joined) as placed:
            kind = Loop if staleness is None else AsyncLoop
            await placed.train(kind(parts, run, reporter, players, engine_for=engine_for, ranks=placed.ranks).train())

    run = begin_run(path, recipe, "train", engine=engine)
    with closing(run):
        with reporting(run, recipe, *told) as reporter:
            for caution in cautions(parts):
                reporter.warning(caution)
            event_loop.run(learn)
        learning_curve(run.metrics(), path / "curve.png", title=recipe.name)
    return Run(path)


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
