"""Checks of all stages of a recipe, before the first one begins."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from agentrl.config.recipe import Recipe
from agentrl.config.stages import PreferenceStage, SftStage
from agentrl.rollouts.builder import Parts, build
from agentrl.training.preflight.checks import check_model, check_training
from agentrl.training.stages.data import examples_of, key_of, parser_of, preference_loss, seats_refused, stored_for
from agentrl.training.stages.stage import Stage, stages_of
from agentrl.types.errors import AgentRLError, RecipeError


def check_stages(recipe: Recipe) -> list[tuple[Stage, Parts]]:
    """Checks the stages of a recipe, and returns each with the parts of its recipe.

    Raises:
        AgentRLError: the first problem found.
    """
    stages = stages_of(recipe)
    found = []
    for stage in stages:
        with _named(stage):
            parts = build(stage.recipe)
            if stage.kind == "rl":
                check_training(parts, begins=stage.index == 0)
            else:
                _check_offline(stage, stages, parts)
        found.append((stage, parts))
    return found


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


def _check_offline(stage: Stage, stages: Iterable[Stage], parts: Parts) -> None:
    """Reads the files and the runs that a stage learns from."""
    settings = stage.settings
    check_model(stage.recipe, stage.optimiser, begins=stage.index == 0)
    if isinstance(settings, PreferenceStage):
        loss = preference_loss(stage)
        if settings.threshold is not None and loss.paired:
            raise RecipeError(
                f"the loss {loss.name} compares a good episode with a bad one: it takes pairs",
                place=key_of(stage, "threshold"),
                remedy="remove it, or use the loss kto",
            )
    with stored_for(stage, None, stages) as stored:
        if isinstance(settings, SftStage) and settings.script is not None:
            parts.script(settings.script)
        elif stored is None and getattr(settings, "run", None) is not None and _chooses(stage):
            if parts.make_agent().seats:  # the run's episodes will be of this recipe's agent
                raise seats_refused(key_of(stage, "run"))
        elif getattr(settings, "jsonl", None) is not None or stored is not None:
            examples_of(stage, parser_of(parts), stored, [])


def _chooses(stage: Stage) -> bool:
    """Whether a stage chooses among stored episodes by their reward."""
    settings = stage.settings
    return isinstance(settings, PreferenceStage) or getattr(settings, "min_reward", None) is not None
