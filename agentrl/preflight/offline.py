"""Checks of supervised and preference stages: the model, the loss, and the files and runs that they learn from."""

from __future__ import annotations

from agentrl.config.stages import PreferenceStage
from agentrl.config.tasks import ROWS
from agentrl.preflight.trainer import check_offline, chosen_trainer
from agentrl.preflight.training import check_model
from agentrl.rollouts.builder import Parts
from agentrl.training.stages.data import (
    examples_of,
    key_of,
    offline_credit,
    parser_of,
    preference_loss,
    seats_refused,
    stored_for,
)
from agentrl.training.stages.plan import StagePlan
from agentrl.training.stages.stage import Stage
from agentrl.types.errors import RecipeError


def offline_plan(stage: Stage, parts: Parts) -> StagePlan:
    """The plan of a stage without rollouts, checked. Reads the files and the runs that it learns from.

    Raises:
        AgentRLError: the first problem found.
    """
    settings, plan = stage.settings, StagePlan(stage, parts, chosen_trainer(stage.recipe, stage.optimiser))
    check_model(stage.recipe.model, stage.optimiser, begins=stage.index == 0)
    if isinstance(settings, PreferenceStage):
        loss = preference_loss(stage)
        if settings.threshold is not None and loss.paired:
            raise RecipeError(
                f"the loss {loss.name} compares a good episode with a bad one: it takes pairs",
                place=key_of(stage, "threshold"),
                remedy="remove it, or use the loss kto",
            )
    check_offline(plan)
    offline_credit(stage)
    with stored_for(stage, None) as stored:
        if stored is None and getattr(settings, "run", None) is not None and _chooses(stage):
            if parts.make_agent().seats:  # the run's episodes will be of this recipe's agent
                raise seats_refused(key_of(stage, "run"))
        elif any(getattr(settings, key, None) is not None for key in (*ROWS, "text")) or stored is not None:
            examples_of(stage, parser_of(parts, fetch=False), stored, [])
    return plan


def _chooses(stage: Stage) -> bool:
    """Returns True if a stage selects stored episodes by their reward."""
    settings = stage.settings
    return isinstance(settings, PreferenceStage) or getattr(settings, "min_reward", None) is not None
