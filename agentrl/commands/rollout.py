"""`agentrl rollout` and `agentrl eval`: episodes without learning."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from agentrl.chat.renderer import Renderer
from agentrl.chat.tokenizer import Tokenizer
from agentrl.commands.runs import closing, free_folder, open_run, recipe_of
from agentrl.config.loader import load_recipe, with_overrides
from agentrl.config.recipe import EvalSettings, Recipe
from agentrl.curriculum.task_source import TaskSource, load_tasks
from agentrl.distributed.servers import LaunchedServers
from agentrl.distributed.worker_pool import open_players
from agentrl.reporters.registry import trackers
from agentrl.reporters.reporting import reporting
from agentrl.reporters.terminal import Terminal
from agentrl.rollout.builder import Parts, build
from agentrl.rollout.collector import Collector
from agentrl.rollout.engines import open_engine, start_to_sample
from agentrl.rollout.specs import EpisodeSpec, missing, rollout_specs
from agentrl.sandbox.pool import Pool
from agentrl.store.run_dir import RunDir
from agentrl.types.closing import close_all
from agentrl.types.engine import Engine
from agentrl.types.errors import RecipeError
from agentrl.types.reporter import Reporter


def rollout(
    name: str, overrides: list[str], *, n: int, group_size: int, agent: str | None, engine: str | None, out: Path | None
) -> Path:
    """Collects `n` episodes into a run directory; the same command again adds what is missing."""
    recipe = load_recipe(name, overrides)
    parts = build(recipe)
    tasks = load_tasks(recipe.tasks, recipe.base, recipe.seed)
    who = agent or (engine or recipe.engine.use).partition(":")[0]
    path = out or Path("runs") / f"{recipe.name}-{who}"
    planned = rollout_specs(tasks, n, group_size=group_size)
    run = open_run(path, recipe, "rollout", agent=agent, engine=engine, group_size=group_size)
    with closing(run):
        run.update_info(planned=[spec.id for spec in planned], finished=False)
        with reporting(run, recipe, Terminal()) as progress:
            asyncio.run(_collect(parts, run, planned, agent, engine, progress))
        run.update_info(finished=True)
    return path


async def _collect(
    parts: Parts, run: RunDir, planned: list[EpisodeSpec], agent: str | None, engine: str | None, progress: Reporter
) -> None:
    todo = missing(planned, run)
    if len(todo) < len(planned):
        progress.note(f"{len(planned) - len(todo)} of {len(planned)} episodes are there already")
    if not todo:
        return
    async with open_players(parts, progress.note) as players:
        live, renderer = named_engine(parts, agent, engine)
        try:
            await start_to_sample(live, progress.note)
            parts.check_prompts(renderer, [spec.task for spec in todo], live.max_context)
            progress.phase("episodes", len(todo))
            await Collector(parts, run, progress, players).collect(todo, live, renderer)
            if isinstance(players.backend, Pool):
                progress.note(players.backend.stats().sentence())
        finally:
            await close_all(progress.note, live)


def evaluation(name: str, overrides: list[str], *, n: int | None, out: Path | None) -> tuple[Path, dict[str, Any]]:
    """Evaluates a recipe's model, or the newest checkpoint of a run (or a checkpoint) on the tasks of its recipe.

    Without `out` the episodes are fresh; the same `out` again continues an evaluation that was interrupted.

    Returns:
        The run directory, and the metrics.
    """
    recipe, iteration = load_evaluated(name, overrides)
    parts = build(recipe)
    tracked = trackers(recipe)
    settings = recipe.eval or EvalSettings()
    if n is not None:
        settings = settings.model_copy(update={"episodes": n})
    tasks = load_tasks(settings.tasks or recipe.tasks, recipe.base, recipe.seed)
    path = out or free_folder(Path("runs") / f"{recipe.name}-eval")
    run = open_run(path, recipe, "eval", episodes=settings.episodes)
    again = "the same command continues" if out else f"--out {path} continues, the same command alone begins anew"
    with closing(run, again):
        with reporting(run, recipe, Terminal(), *tracked) as progress:
            if recipe.model is not None:
                progress.note(f"model: {recipe.model.path or 'from scratch'}")
            metrics = asyncio.run(_evaluate(parts, settings, tasks, run, progress, iteration))
        run.update_info(finished=True)
    return path, metrics


async def _evaluate(
    parts: Parts, settings: EvalSettings, tasks: TaskSource, run: RunDir, progress: Reporter, iteration: int
) -> dict[str, Any]:
    async with open_players(parts, progress.note) as players:
        engine, renderer = open_engine(parts, LaunchedServers)
        try:
            await start_to_sample(engine, progress.note)
            parts.check_prompts(renderer, tasks.tasks, engine.max_context)
            collector = Collector(parts, run, progress, players)
            metrics = await collector.evaluate(settings, tasks, engine, renderer, iteration)
            run.add_metrics(metrics)
            return metrics
        finally:
            await close_all(progress.note, engine)


def load_evaluated(name: str, overrides: list[str]) -> tuple[Recipe, int]:
    """The recipe to evaluate, and the iteration of its weights: by name (0), or of a run or checkpoint folder.

    Raises:
        RecipeError: there is no such recipe or folder, or the run has no checkpoint.
    """
    folder = Path(name)
    if (folder / "state.json").is_file():
        newest, run_folder = folder, folder.resolve().parent.parent
    elif (folder / "run.json").is_file():
        newest, run_folder = newest_checkpoint(folder), folder
    else:
        return load_recipe(name, overrides), 0
    with RunDir.read(run_folder) as run:
        trained = recipe_of(run)
    recipe = with_overrides(trained, overrides, run_folder / "run.json")
    if recipe.model is None or trained.model is None:
        raise RecipeError(f"{folder} has no model", remedy="evaluate a training run")
    if (recipe.model.path, recipe.model.scratch) != (trained.model.path, trained.model.scratch):
        raise RecipeError(
            f"{newest} is to be evaluated, and --set names another model",
            place="--set model",
            remedy="evaluate a recipe, with --set 'model={path: ...}'",
        )
    return recipe.with_model(recipe.model.at(newest)), int(newest.name.removeprefix("it-"))


def newest_checkpoint(run_folder: Path) -> Path:
    """The newest checkpoint of a run.

    Raises:
        RecipeError: there is none.
    """
    found = sorted(path.parent for path in (run_folder / "checkpoints").glob("it-*/state.json"))
    if not found:
        raise RecipeError(f"{run_folder} has no checkpoint", remedy="agentrl train makes them")
    return found[-1]


def named_engine(parts: Parts, agent: str | None, engine: str | None) -> tuple[Engine, Renderer]:
    """The engine that a command names: a script (`--agent`), `replay:RUN`, or the recipe's own."""
    if agent is not None:
        if engine is not None:
            raise RecipeError("--agent plays a script and --engine names another engine", remedy="give one of them")
        return parts.scripted_engine(agent)
    kind, _, argument = (engine or "").partition(":")
    if kind == "replay" and argument:
        from agentrl.engines.replay import ReplayEngine

        source = RunDir.read(Path(argument))
        return ReplayEngine(source), parts.renderer(_tokenizer_of(source))
    if engine is None:
        return open_engine(parts, LaunchedServers)
    raise RecipeError(
        f"there is no engine {engine!r}", place="--engine", remedy="replay:RUN; others by --set engine=torch|vllm"
    )


def _tokenizer_of(run: RunDir) -> Tokenizer:
    """The tokenizer that a stored run's prompts were rendered with."""
    from agentrl.chat.tokenizer import ByteTokenizer, HFTokenizer
    from agentrl.models.load import load_tokenizer

    if run.info.get("agent") is not None:
        return ByteTokenizer()
    model = recipe_of(run).model
    assert model is not None
    if run.info["command"] == "train":
        model = model.at(newest_checkpoint(run.path))
    return HFTokenizer(load_tokenizer(model))
