"""Training in a run directory, stage after stage."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentrl.api import event_loop
from agentrl.api.hub_models import at_commits
from agentrl.api.recipes import AnyProfile, AnyRecipe, Overrides, given_recipe
from agentrl.api.run import Run, folder_of
from agentrl.api.run_dirs import begin_run, closing
from agentrl.engines.registry import chosen_engine
from agentrl.preflight.plan import plan
from agentrl.reporters.reporting import preparing, reporting
from agentrl.reporters.terminal import Terminal
from agentrl.types.errors import RecipeError, needs
from agentrl.types.reporter import Reporter


def train(
    recipe: AnyRecipe,
    *,
    overrides: Overrides = (),
    profile: AnyProfile = None,
    replay: str | Path | Run | None = None,
    from_run: str | Path | Run | None = None,
    passes: int = 1,
    out: str | Path | None = None,
    reporters: Sequence[Reporter] | None = None,
) -> Run | None:
    """Trains a recipe in a run directory and plots its learning curve. An existing run is resumed.

    Args:
        replay: a stored training of the same recipe whose completions are repeated, with live tools; instead of the
            recipe's engine.
        from_run: trains on the episodes of a stored run, of `proxy`, `rollout` or `train`, without new rollouts.
        passes: number of passes over its groups.
        out: the run directory; default: `runs/NAME`, with `from_run` `runs/NAME-recorded`.
        recipe, overrides, profile, reporters: as for `rollout`.

    Returns:
        The run; None in processes of torchrun other than rank 0.

    Raises:
        AgentRLError: the recipe has an error, too many episodes failed, or training cannot continue.
    """
    if replay is not None and from_run is not None:
        raise RecipeError("--from and --replay exclude each other", remedy="give one of them")
    if passes != 1 and from_run is None:
        raise RecipeError(
            "--passes counts passes over the groups of a stored run, and none is named",
            place="--passes",
            remedy="add --from RUN; a training with rollouts is as long as train.iterations says",
        )
    loaded = given_recipe(recipe, overrides, profile)
    name = loaded.name if from_run is None else f"{loaded.name}-recorded"
    path = Path(out) if out is not None else Path("runs") / name
    with needs("train"):
        from agentrl.api.train_stages import train_stages
        from agentrl.models.load import on_cuda
        from agentrl.training.parallel.ranks import Ranks
        from agentrl.training.spmd import worker_loop
    from agentrl.view.curves import learning_curve

    joined = Ranks.from_torchrun()
    if joined.rank:
        worker_loop(joined)
        return None
    recorded = None if from_run is None else folder_of(from_run)
    repeated = None if replay is None else folder_of(replay)
    with preparing(reporters):
        loaded, commits = at_commits(loaded, path, trains=True)
        planned = plan(loaded, from_run=recorded, passes=passes, replay=repeated, tasks=True)
        if planned.replay is None:
            for each in planned.rl:
                engine = chosen_engine(each.recipe)
                engine.plug_in.check_machine(engine.settings, each.recipe)
    cuda = planned.recipe.model is not None and on_cuda(planned.recipe.model)
    how: dict[str, Any] = {"replay": None if repeated is None else str(repeated), "from_run": None}
    if recorded is not None:
        how = {"replay": None, "from_run": str(recorded), "passes": passes}
    run = begin_run(path, planned.recipe, "train", tools=planned.definitions, models=commits, **how)
    told = [Terminal()] if reporters is None else reporters
    with closing(run):
        with reporting(run, *told, *planned.trackers) as reporter:
            for warning in planned.warnings:
                reporter.warning(warning)
            event_loop.run(lambda: train_stages(planned, run, reporter, joined, cuda=cuda))
        learning_curve(run.metrics(), path / "curve.png", title=run.info["recipe"]["name"])
    return Run(path)
