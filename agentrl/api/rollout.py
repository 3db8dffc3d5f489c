"""Rollouts without training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from agentrl.api import event_loop
from agentrl.api.hub_models import Commits, at_commits
from agentrl.api.recipes import AnyProfile, AnyRecipe, Overrides, given_recipe
from agentrl.api.run import Run, folder_of
from agentrl.api.run_dirs import begin_run, closing
from agentrl.api.run_tokenizer import tokenizer_of
from agentrl.chat.renderer import Renderer
from agentrl.distributed.servers import LaunchedServers
from agentrl.distributed.worker_pool import open_runners
from agentrl.reporters.reporting import preparing, reporting
from agentrl.reporters.terminal import Terminal
from agentrl.rollouts.builder import Parts, build
from agentrl.rollouts.collector import Collector
from agentrl.rollouts.engines import memory_of, open_engine, start_to_sample
from agentrl.rollouts.groups.stored import unscored_groups
from agentrl.rollouts.specs import EpisodeSpec, missing, rollout_specs
from agentrl.sandbox.pool import Pool
from agentrl.store.run_dir import RunDir
from agentrl.types.closing import close_all
from agentrl.types.engine import Engine
from agentrl.types.errors import RecipeError
from agentrl.types.reporter import Reporter


def rollout(
    recipe: AnyRecipe,
    n: int = 64,
    *,
    overrides: Overrides = (),
    profile: AnyProfile = None,
    group_size: int = 1,
    script: str | None = None,
    replay: str | Path | Run | None = None,
    out: str | Path | None = None,
    reporters: Sequence[Reporter] | None = None,
) -> Run:
    """Collects episodes into a run directory. The same call again adds only the missing episodes.

    Args:
        recipe: a YAML file, a folder with `recipe.yaml`, the name of a shipped recipe, a loaded
            recipe, or its sections as a mapping.
        n: number of episodes.
        overrides: keys of the recipe to override: `{"sampling.temperature": 0.7}`, or `["sampling.temperature=0.7"]`.
        profile: what differs on a machine: `laptop`, `gpu`, `node` or a YAML file; the overrides are applied after it.
        group_size: episodes per task.
        script: a script of the recipe (`oracle`, `random`, ...) that plays instead of the model.
        replay: a stored run whose completions are repeated, with live tools; instead of the model.
        out: the run directory; default: `runs/NAME-SCRIPT`, `runs/NAME-replay` or `runs/NAME-ENGINE`.
        reporters: receive the events of the run; default: the terminal; `()`: none.

    Raises:
        AgentRLError: the recipe has an error, or too many episodes failed.
    """
    if script is not None and replay is not None:
        raise RecipeError("--script and --replay exclude each other", remedy="give one of them")
    recipe = given_recipe(recipe, overrides, profile)
    source = None if replay is None else folder_of(replay)
    who = script or ("replay" if source is not None else recipe.engine.use.rpartition(":")[2])
    path = Path(out) if out is not None else Path("runs") / f"{recipe.name}-{who}"
    commits: Commits = {}
    with preparing(reporters):
        if script is None and source is None:
            recipe, commits = at_commits(recipe, path)
        parts = build(recipe)
        if script is not None:
            parts.check_script(script)
        _ = parts.tasks
    planned = rollout_specs(parts.tasks, n, group_size=group_size)
    repeated = None if source is None else str(source)
    how = {"script": script, "replay": repeated, "group_size": group_size}
    run = begin_run(path, recipe, "rollout", tools=parts.definitions, models=commits, **how)
    with closing(run):
        run.update_info(planned=[spec.id for spec in planned], finished=False)
        with reporting(run, *([Terminal()] if reporters is None else reporters)) as reporter:
            event_loop.run(lambda: _collect(parts, run, planned, script, source, reporter))
        run.update_info(finished=True)
    return Run(path)


async def _collect(
    parts: Parts, run: RunDir, planned: list[EpisodeSpec], script: str | None, replay: Path | None, reporter: Reporter
) -> None:
    todo = missing(planned, run)
    if len(todo) < len(planned):
        reporter.note(f"{len(planned) - len(todo)} of {len(planned)} episodes are stored already")
    if not todo and not unscored_groups(parts.rewards, planned, run):
        return
    async with open_runners(parts) as runners:
        live, renderer = named_engine(parts, script, replay)
        try:
            await start_to_sample(live, reporter.note)
            parts.check_prompts(renderer, [spec.task for spec in todo], live.max_context)
            reporter.phase("episodes", len(todo))
            await Collector(parts, run, reporter, runners).collect(planned, live, renderer)
            if isinstance(runners.backend, Pool):
                reporter.note(runners.backend.stats().sentence())
        finally:
            await close_all(live)


def named_engine(parts: Parts, script: str | None, replay: Path | None = None) -> tuple[Engine, Renderer]:
    """Opens the engine of a command: a script, the replay of a stored run, or the recipe's engine."""
    if script is not None:
        return parts.scripted_engine(script)
    if replay is not None:
        from agentrl.engines.replay import ReplayEngine

        source = RunDir.read(replay)
        engine = ReplayEngine(source)
        engine.memory = memory_of(parts)
        return engine, parts.renderer(tokenizer_of(source))
    return open_engine(parts, LaunchedServers)
