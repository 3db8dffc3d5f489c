"""Evaluation of a policy on fresh episodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from agentrl.api import event_loop
from agentrl.api.hub_models import at_commits
from agentrl.api.recipes import AnyProfile, AnyRecipe, Overrides, as_lines, given_recipe
from agentrl.api.run import Run, folder_of
from agentrl.api.run_dirs import LAST, begin_run, closing, free_folder, kept_checkpoint
from agentrl.config.loader import load_recipe
from agentrl.config.model import ModelSettings
from agentrl.config.recipe import EvalSettings, Recipe, recipe_from_run
from agentrl.curriculum.task_source import TaskSource
from agentrl.distributed.servers import LaunchedServers
from agentrl.distributed.worker_pool import open_runners
from agentrl.reporters.registry import trackers
from agentrl.reporters.reporting import preparing, reporting
from agentrl.reporters.terminal import Terminal
from agentrl.rollouts.builder import Parts, build
from agentrl.rollouts.collector import Collector
from agentrl.rollouts.engines import open_engine, start_to_sample
from agentrl.store.checkpoints import about
from agentrl.store.run_dir import RunDir
from agentrl.training.stages.stage import is_of, stages_of
from agentrl.types.closing import close_all
from agentrl.types.errors import RecipeError
from agentrl.types.memory import TextMemory
from agentrl.types.reporter import Reporter


def eval(
    what: AnyRecipe | Run,
    n: int | None = None,
    *,
    k: int | None = None,
    by: str | None = None,
    checkpoint: str | int | None = None,
    overrides: Overrides = (),
    profile: AnyProfile = None,
    out: str | Path | None = None,
    reporters: Sequence[Reporter] | None = None,
) -> Run:
    """Evaluates the model of a recipe, or a checkpoint of a run, on the tasks of the recipe's `eval` section.

    The metrics are in `run.metrics[-1]`.

    Args:
        what: a recipe as `rollout` takes it; a training run or its folder; a checkpoint folder.
        n: number of episodes; default: `eval.episodes` of the recipe.
        k: tries of each task; default: `eval.k` of the recipe. With several, `pass@k` and `pass^k` are measured.
        by: a field of the tasks' data; success is also given by its values. Default: `eval.by`.
        checkpoint: of a run: `last` (the default), `best` (`train.keep.best`) or an iteration.
        out: the run directory; an interrupted evaluation in it is continued. Default: a new folder.
        profile: as for `rollout`; of a run or a checkpoint, all of it but the model.
        overrides, reporters: as for `rollout`.

    Raises:
        AgentRLError: the recipe has an error, the run has no checkpoint, or too many episodes failed.
    """
    recipe, iteration = evaluated(what, overrides, profile, checkpoint)
    path = Path(out) if out is not None else free_folder(Path("runs") / f"{recipe.name}-eval")
    with preparing(reporters):
        recipe, commits = at_commits(recipe, path)
        parts = build(recipe)
        tasks = parts.eval_tasks
    told = [*([Terminal()] if reporters is None else reporters), *trackers(recipe.track, recipe.base)]
    settings = recipe.eval or EvalSettings()
    given = {"episodes": n, "k": k, "by": by}
    settings = settings.model_copy(update={key: value for key, value in given.items() if value is not None})
    run = begin_run(path, recipe, "eval", tools=parts.definitions, models=commits, episodes=settings.episodes)
    again = "the same command continues" if out else f"--out {path} continues; without it the command starts again"
    with closing(run, again):
        with reporting(run, *told) as reporter:
            if recipe.model is not None:
                reporter.note(f"model: {recipe.model.path or 'from scratch'}")
            event_loop.run(lambda: _evaluate(parts, settings, tasks, run, reporter, iteration))
        run.update_info(finished=True)
    return Run(path)


async def _evaluate(
    parts: Parts, settings: EvalSettings, tasks: TaskSource, run: RunDir, reporter: Reporter, iteration: int
) -> None:
    async with open_runners(parts) as runners:
        engine, renderer = open_engine(parts, LaunchedServers)
        try:
            await start_to_sample(engine, reporter.note)
            parts.check_prompts(renderer, tasks.tasks, engine.max_context)
            collector = Collector(parts, run, reporter, runners)
            metrics = await collector.evaluate(settings, tasks, engine, renderer, iteration)
            reporter.metrics(metrics)
            run.add_metrics(metrics)
        finally:
            await close_all(engine)


def evaluated(
    what: AnyRecipe | Run,
    overrides: Overrides = (),
    profile: AnyProfile = None,
    checkpoint: str | int | None = None,
) -> tuple[Recipe, int]:
    """The recipe to evaluate, and the iteration of its weights (0 for a recipe that is not a run or a checkpoint).

    Raises:
        RecipeError: the recipe or folder does not exist, or the run has no such checkpoint.
    """
    of_run = not isinstance(what, Recipe | Mapping) and (folder_of(what) / "run.json").is_file()
    if checkpoint is not None and not of_run:
        raise RecipeError(
            "only a training run has checkpoints to choose from, and this is none",
            place="--checkpoint",
            remedy="name the run directory, or the folder of the checkpoint alone",
        )
    if isinstance(what, Recipe | Mapping):
        return given_recipe(what, overrides, profile), 0
    folder = folder_of(what)
    if (folder / "state.json").is_file():
        newest, run_folder = folder, folder.resolve().parent.parent
    elif of_run:
        newest, run_folder = kept_checkpoint(folder, LAST if checkpoint is None else str(checkpoint)), folder
    else:
        return given_recipe(folder, overrides, profile), 0
    with RunDir.read(run_folder) as run:
        trained = recipe_from_run(run.info)
    named = None if profile is None else str(profile)
    recipe = load_recipe(trained, as_lines(overrides), named, place=run_folder / "run.json", without=("model",))
    if trained.model is None and TextMemory.load(newest) is not None:  # an API with a memory
        recipe = recipe.model_copy(update={"model": ModelSettings(path=str(newest))})
    elif recipe.model is None or trained.model is None:
        raise RecipeError(f"{folder} has no model", remedy="evaluate a training run")
    elif any(getattr(recipe.model, key) != getattr(trained.model, key) for key in ("path", "revision", "scratch")):
        raise RecipeError(
            f"--set names another model than the checkpoint to evaluate, {newest}",
            place="--set model",
            remedy="evaluate a recipe, with --set 'model={path: ...}'",
        )
    said = about(newest)
    stage = next((stage for stage in stages_of(recipe) if is_of(stage, said)), None)
    assert recipe.model is not None
    seen = (stage.recipe if stage is not None else recipe).model_copy(
        update={"stages": [], "model": recipe.model.at(newest)}
    )
    return seen, int(said["iteration"])
