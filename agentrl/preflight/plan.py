"""The plan of a training: the stages of a recipe with their parts, made once per command.

Making it imports and constructs the parts that the recipe names and checks them. It starts nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.config.recipe import Recipe
from agentrl.engines.replay import ReplayEngine
from agentrl.preflight.offline import offline_plan
from agentrl.preflight.pairs import check_stages
from agentrl.preflight.recorded import check_recorded, check_replay, on_recorded, replay_of
from agentrl.preflight.training import rl_plan
from agentrl.preflight.warnings import cautions
from agentrl.reporters.registry import trackers
from agentrl.rollouts.builder import build
from agentrl.store.checkpoints import about, latest
from agentrl.store.run_dir import RunDir
from agentrl.training.batch.recorded import RecordedGroups
from agentrl.training.stages.plan import RlPlan, StagePlan
from agentrl.training.stages.stage import Stage, stage_of, stages_of
from agentrl.types.errors import AgentRLError, RecipeError
from agentrl.types.reporter import Reporter


@dataclass(frozen=True)
class TrainingPlan:
    """A recipe that can be trained.

    Attributes:
        recipe: as it is trained; on recorded episodes, without what those replace.
        stages: in order.
        trackers: those of the recipe, not started.
        warnings: allowed settings that would waste a training, each with a remedy.
        recorded: groups to train on in place of rollouts.
        replay: repeats the completions of a stored run, in place of the recipe's engine; also on recorded groups,
            where nothing is sampled.
    """

    recipe: Recipe
    stages: tuple[StagePlan, ...]
    trackers: tuple[Reporter, ...]
    warnings: tuple[str, ...]
    recorded: RecordedGroups | None = None
    replay: ReplayEngine | None = None

    @property
    def rl(self) -> list[RlPlan]:
        """The stages of reinforcement learning."""
        return [each for each in self.stages if isinstance(each, RlPlan)]

    @property
    def definitions(self) -> list[dict[str, Any]]:
        """Definitions of the tools of all stages."""
        return [tool for stage in self.stages for tool in stage.parts.definitions]

    def left(self, checkpoints: Path) -> Sequence[StagePlan]:
        """The stage of the newest checkpoint, and the stages after it; all without a checkpoint.

        Raises:
            RecipeError: the checkpoint is of another stage.
        """
        newest = latest(checkpoints)
        if newest is None:
            return self.stages
        name = stage_of(about(newest))
        at = next((index for index, each in enumerate(self.stages) if each.stage.name == name), None)
        if at is None:
            raise RecipeError(
                f"the newest checkpoint belongs to the stage {name!r}, which the recipe does not have",
                place=str(newest),
                remedy="continue with the original recipe, or start in another folder: --out",
            )
        return self.stages[at:]


def plan(
    recipe: Recipe,
    *,
    from_run: Path | None = None,
    passes: int = 1,
    replay: Path | None = None,
    tasks: bool = False,
) -> TrainingPlan:
    """Plans the training of a recipe.

    Args:
        from_run: a stored run whose episodes are trained on in place of rollouts.
        passes: number of passes over its groups.
        replay: a stored run whose completions are repeated.
        tasks: also makes the tasks of all stages, and refuses bad ones.

    Raises:
        AgentRLError: the first problem found.
    """
    recorded = None if from_run is None else RecordedGroups.of(RunDir.read(from_run), passes)
    if recorded is not None:
        recipe = on_recorded(recipe, recorded)
    stages = tuple(map(_planned, stages_of(recipe)))
    check_stages(stages)
    reinforced = [each for each in stages if isinstance(each, RlPlan)]
    warnings = tuple(line for each in reinforced for line in cautions(each))
    first = reinforced[:1]
    if recorded is not None:
        for each in first:
            check_recorded(each)
    source = replay or from_run
    repeated = None if source is None else replay_of(source)
    if recorded is None and repeated is not None:
        for each in first:
            check_replay(each, repeated)
    if tasks:
        for stage in stages:
            stage.make_tasks(plays=recorded is None)
    told = tuple(trackers(recipe.track, recipe.base))
    return TrainingPlan(recipe, stages, told, warnings, recorded, repeated)


def _planned(stage: Stage) -> StagePlan:
    with _named(stage):
        parts = build(stage.recipe)
        if stage.kind == "rl":
            return rl_plan(stage, parts)
        return offline_plan(stage, parts)


@contextmanager
def _named(stage: Stage) -> Iterator[None]:
    """Adds a named stage to the place of errors that do not name its key already."""
    try:
        yield
    except AgentRLError as error:
        if not stage.listed or (error.place or "").startswith("stages."):
            raise
        where = f"stages.{stage.index} ({stage.name})"
        error.place = f"{where}: {error.place}" if error.place else where
        raise
