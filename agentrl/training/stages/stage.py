"""The stages of a recipe in order, each with its own recipe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentrl.config.recipe import KINDS, Kind, Recipe, RlStage, StageSettings, TrainSection
from agentrl.config.stages import PreferenceStage, SftStage
from agentrl.config.train import OptimiserSettings
from agentrl.types.reporter import UNNAMED

WARM_START, RL = "warm_start", UNNAMED
"""The names of the stages of a recipe without `stages`."""


@dataclass(frozen=True)
class Stage:
    """One training of a run.

    Attributes:
        index: position among all stages.
        settings: the settings of its kind.
        recipe: the recipe, with the stage's own sections in place of the shared ones.
        listed: whether the recipe lists the stage. Otherwise ids and folders do not contain its name.
        source: the prefix of the ids of another stage's episodes, if it learns from those.
    """

    index: int
    name: str
    settings: SftStage | PreferenceStage | RlStage
    recipe: Recipe
    listed: bool = True
    source: str | None = None

    @property
    def kind(self) -> Kind:
        """The kind of the stage."""
        return next(kind for kind in KINDS if isinstance(self.settings, _CLASSES[kind]))

    @property
    def optimiser(self) -> OptimiserSettings:
        """The settings of the optimiser."""
        if isinstance(self.settings, RlStage):
            return self.recipe.train or OptimiserSettings()
        return self.settings.train

    @property
    def prefix(self) -> str:
        """The prefix of the ids of its episodes and groups."""
        return _prefix(self.name) if self.listed else ""

    def checkpoint(self, step: int) -> str:
        """The folder name of a checkpoint. Later checkpoints, also of later stages, sort after it."""
        return f"it-{step:05d}" if self.name == RL and not self.listed else f"{self.index:02d}-{self.name}-{step:06d}"


_CLASSES: dict[Kind, type] = {"sft": SftStage, "preference": PreferenceStage, "rl": RlStage}


def stages_of(recipe: Recipe) -> list[Stage]:
    """Returns the listed stages of a recipe, or else its warm start (if any) and its training."""
    if recipe.stages:
        return [_listed(index, each, recipe) for index, each in enumerate(recipe.stages)]
    stages: list[Stage] = []
    if (warm := recipe.warm_start) is not None:
        settings = SftStage(**warm.model_dump(), train=_optimiser(recipe.train))
        stages.append(Stage(0, WARM_START, settings, recipe, listed=False))
    return [*stages, Stage(len(stages), RL, RlStage(), recipe, listed=False)]


def is_of(stage: Stage, said: Mapping[str, Any]) -> bool:
    """Returns True if a checkpoint belongs to a stage, by its metadata. Older checkpoints without a stage belong to the
    training."""
    return stage_of(said) == stage.name


def stage_of(said: Mapping[str, Any]) -> str:
    """Returns the name of the stage of a checkpoint, by its metadata."""
    return str(said.get("stage", UNNAMED))


def _listed(index: int, stage: StageSettings, recipe: Recipe) -> Stage:
    settings = getattr(stage, stage.kind)
    run = getattr(settings, "run", None)
    source = _prefix(run) if run in {each.name for each in recipe.stages} else None
    return Stage(index, stage.name, settings, recipe.model_copy(update=stage.sections), source=source)


def _prefix(name: str) -> str:
    return f"{name}/"


def _optimiser(train: TrainSection | None) -> OptimiserSettings:
    if train is None:
        return OptimiserSettings()
    return OptimiserSettings(**{name: getattr(train, name) for name in OptimiserSettings.model_fields})
