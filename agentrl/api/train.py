"""Training in a run directory, stage after stage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl.api import event_loop
from agentrl.api.recipes import AnyRecipe, Overrides, given_recipe
from agentrl.api.run import Run, folder_of
from agentrl.api.run_dirs import begin_run, closing
from agentrl.config.recipe import Recipe, TrainingRecipe
from agentrl.curriculum.curriculum import Curriculum, load_parts
from agentrl.curriculum.parts import Filter
from agentrl.distributed.worker_pool import open_players
from agentrl.engines.registry import chosen_engine
from agentrl.preflight.plan import plan
from agentrl.reporters.registry import trackers
from agentrl.reporters.reporting import reporting
from agentrl.reporters.terminal import Terminal
from agentrl.rollouts.player import Players
from agentrl.rollouts.specs import EpisodeSpec, iteration_specs
from agentrl.store.checkpoints import about, latest
from agentrl.store.run_dir import RunDir
from agentrl.training.stages.plan import RlPlan, StagePlan
from agentrl.training.stages.stage import is_of
from agentrl.types.engine import Engine
from agentrl.types.errors import RecipeError, needs
from agentrl.types.reporter import Reporter

if TYPE_CHECKING:
    from agentrl.models.load import LoadedModel
    from agentrl.training.batch.recorded import Recorded


def train(
    recipe: AnyRecipe,
    *,
    overrides: Overrides = (),
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
        recipe, overrides, reporters: as for `rollout`.

    Returns:
        The run; None in processes of torchrun other than rank 0.

    Raises:
        AgentRLError: the recipe has an error, too many episodes failed, or training cannot continue.
    """
    if replay is not None and from_run is not None:
        raise RecipeError("--from and --replay exclude each other", remedy="give one of them")
    recipe = given_recipe(recipe, overrides)
    name = recipe.name if from_run is None else f"{recipe.name}-recorded"
    path = Path(out) if out is not None else Path("runs") / name
    with needs("train"):
        from agentrl.distributed.ranks import trainer_ranks
        from agentrl.distributed.servers import LaunchedServers
        from agentrl.rollouts.engines import engine_of
        from agentrl.training.assembly import training
        from agentrl.training.parallel.ranks import Ranks
        from agentrl.training.spmd import worker_loop
        from agentrl.training.stages.offline import OfflineTraining
        from agentrl.training.stages.policy import let_go
    from agentrl.view.curves import learning_curve

    joined = Ranks.from_torchrun()
    if joined.rank:
        worker_loop(joined)
        return None
    source, stored = None if replay is None else folder_of(replay), None
    if from_run is not None:
        source = folder_of(from_run)
        recipe, stored = _without_rollouts(recipe, source, passes)
    planned = plan(recipe)
    told = [*([Terminal()] if reporters is None else reporters), *trackers(recipe)]
    if source is None:
        for each in planned.rl:
            engine = chosen_engine(each.recipe)
            engine.plug_in.check_machine(engine.settings, each.recipe)
    repeats = None if source is None else _replay(source, planned.rl if stored is None else [])

    async def train_stage(stage: StagePlan, players: Players, ranks: Ranks) -> None:
        if not isinstance(stage, RlPlan):
            every = [each.stage for each in planned.stages]
            return await OfflineTraining(stage, every, run, reporter, players, ranks=ranks).train()
        engine_for = repeats or partial(engine_of, stage.parts, launch_servers=LaunchedServers)
        async with training(stage, run, reporter, players, engine_for=engine_for, ranks=ranks, recorded=stored) as loop:
            await loop.run()

    async def learn(ranks: Ranks) -> None:
        for stage in _stages_left(planned.stages, run.path / "checkpoints"):
            async with open_players(stage.parts, trains=True) as players:
                await train_stage(stage, players, ranks)
            let_go()
        run.update_info(finished=True)

    async def lead() -> None:
        async with trainer_ranks(recipe, joined) as placed:
            await placed.train(learn(placed.ranks))

    offered = [tool for stage in planned.stages for tool in stage.parts.definitions]
    how: dict[str, Any] = {"replay": None, "from_run": None}
    if stored is not None:
        how |= {"from_run": str(source), "passes": passes}
    elif source is not None:
        how["replay"] = str(source)
    run = begin_run(path, recipe, "train", tools=offered, **how)
    with closing(run):
        with reporting(run, recipe, *told) as reporter:
            for warning in planned.warnings:
                reporter.warning(warning)
            event_loop.run(lead)
        learning_curve(run.metrics(), path / "curve.png", title=recipe.name)
    return Run(path)


def _without_rollouts(recipe: Recipe, run: Path, passes: int) -> tuple[Recipe, Recorded]:
    """Returns the recorded groups of a run, and the recipe that trains on them: iterations as the data allows, without
    evaluation.

    Raises:
        RecipeError: the recipe has stages or asks for demonstrations, or its loss does not correct for updates since
            the episodes were recorded.
        TrainError: no recorded episode can be trained on.
    """
    from agentrl.training.batch.recorded import Recorded

    if recipe.stages or recipe.warm_start is not None:
        raise RecipeError(
            "recorded episodes train the recipe's model, without stages before",
            place="stages" if recipe.stages else "warm_start",
            remedy="--set model.path=FOLDER with the weights that were recorded, and --set warm_start=null",
        )
    train, stored = TrainingRecipe.of(recipe).train, Recorded.of(RunDir.read(run), passes)
    train = train.model_copy(update={"iterations": stored.iterations(train.groups)})
    if train.iterations > 1 and not train.corrects_stale_tokens:
        raise RecipeError(
            f"the recorded groups make {train.iterations} updates, and from the second on the policy is not the one "
            "that was recorded; the loss does not correct for that",
            place="train.importance",
            remedy="--set train.old_logprobs=engine, which clips against the policy that was recorded, or "
            "train.importance={high: 2}; one update on all groups (train.groups) needs neither",
        )
    for part in load_parts(recipe.curriculum, recipe.base, recipe.scripts):
        if isinstance(part, Filter) and type(part).demonstrate is not Filter.demonstrate:
            raise RecipeError(
                f"{part.name} plays demonstrations, and recorded episodes train without playing any",
                place="curriculum",
                remedy="leave it out: --set curriculum=[]",
            )
    return recipe.with_sections(train=train, eval=None), stored


def _stages_left(stages: Sequence[StagePlan], checkpoints: Path) -> Sequence[StagePlan]:
    """The stage of the newest checkpoint, and the stages after it."""
    newest = latest(checkpoints)
    if newest is None:
        return stages
    said = about(newest)
    at = next((index for index, each in enumerate(stages) if is_of(each.stage, said)), None)
    if at is None:
        raise RecipeError(
            f"the newest checkpoint belongs to the stage {said.get('stage')!r}, which the recipe does not have",
            place=str(newest),
            remedy="continue with the original recipe, or start in another folder: --out",
        )
    return stages[at:]


def _replay(source: Path, stages: Sequence[RlPlan]) -> Callable[[LoadedModel], Engine]:
    """Returns a factory of the engine that replays the completions of a stored run.

    Raises:
        RecipeError: the run has no log-probabilities.
        TrainError: its tokens were not sampled from the whole distribution.
        StoreError: the folder is not a run, or does not contain the episodes of the first iteration.
    """
    from agentrl.engines.replay import ReplayEngine
    from agentrl.training.batch.recorded import check_sampled_whole

    replay = ReplayEngine(RunDir.read(source))
    check_sampled_whole(replay.run)
    if not replay.trainable:
        raise RecipeError(
            "was played by a script or an API: its tokens have no log-probabilities to train on",
            place=str(source),
            remedy="take a run of the torch or vllm engine",
        )
    for stage in stages[:1]:
        replay.require(spec.id for spec in _first_iteration(stage))
    return lambda loaded: replay


def _first_iteration(plan: RlPlan) -> list[EpisodeSpec]:
    recipe = plan.recipe
    curriculum = Curriculum(plan.parts.make_curriculum(), seed=recipe.seed, iterations=recipe.train.iterations)
    size, turns = recipe.train.group_size, recipe.agent.max_turns
    return iteration_specs(curriculum.draw(plan.parts.tasks, recipe.train.groups, size, turns, 0), 0, plan.stage.prefix)
