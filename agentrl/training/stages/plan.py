"""The plan of a stage: its recipe's parts, checked. `agentrl.preflight.plan` makes it, once per command."""

from __future__ import annotations

from dataclasses import dataclass

from agentrl.config.recipe import TrainingRecipe
from agentrl.registry.registry import Loaded
from agentrl.rollouts.builder import Parts
from agentrl.training.backend import TrainerBackend
from agentrl.training.losses.loss import Loss
from agentrl.training.stages.stage import Stage


@dataclass(frozen=True)
class StagePlan:
    """A stage that can be trained.

    Attributes:
        parts: the parts of the stage's recipe.
        trainer: what `train.backend` names.
    """

    stage: Stage
    parts: Parts
    trainer: Loaded[type[TrainerBackend]]


@dataclass(frozen=True)
class RlPlan(StagePlan):
    """A stage of reinforcement learning.

    Attributes:
        recipe: the stage's recipe, with all that training needs.
        loss: the policy loss.
    """

    recipe: TrainingRecipe
    loss: Loss
