"""The plan of a training: the stages of a recipe with their parts, made once per command.

Making it imports and constructs the parts that the recipe names and checks them. It starts nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from agentrl.config.recipe import Recipe
from agentrl.preflight.offline import offline_plan
from agentrl.preflight.training import rl_plan
from agentrl.preflight.warnings import cautions
from agentrl.rollouts.builder import build
from agentrl.training.stages.plan import RlPlan, StagePlan
from agentrl.training.stages.stage import Stage, stages_of
from agentrl.types.errors import AgentRLError


@dataclass(frozen=True)
class TrainingPlan:
    """A recipe that can be trained.

    Attributes:
        stages: in order.
        warnings: allowed settings that would waste a training, each with a remedy.
    """

    recipe: Recipe
    stages: tuple[StagePlan, ...]
    warnings: tuple[str, ...]

    @property
    def rl(self) -> list[RlPlan]:
        """The stages of reinforcement learning."""
        return [each for each in self.stages if isinstance(each, RlPlan)]


def plan(recipe: Recipe) -> TrainingPlan:
    """Plans the training of a recipe.

    Raises:
        AgentRLError: the first problem found.
    """
    stages = stages_of(recipe)
    planned = tuple(_planned(stage, stages) for stage in stages)
    warnings = [line for each in planned if isinstance(each, RlPlan) for line in cautions(each)]
    return TrainingPlan(recipe, planned, tuple(warnings))


def _planned(stage: Stage, stages: list[Stage]) -> StagePlan:
    with _named(stage):
        parts = build(stage.recipe)
        if stage.kind == "rl":
            return rl_plan(stage, parts)
        return offline_plan(stage, stages, parts)


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
