"""The plan of a stage: its recipe's parts, checked. `agentrl.preflight.plan` makes it, once per command."""

from __future__ import annotations

from dataclasses import dataclass

from agentrl.config.recipe import TrainingRecipe
from agentrl.config.stages import SftStage
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

    def make_tasks(self, *, plays: bool) -> None:
        """Makes the tasks of the stage, and refuses bad ones, before an event loop runs and a run directory exists.

        Code that makes them may compute for seconds, which would hold up every episode.

        Args:
            plays: the training plays episodes; it does not train on recorded ones.
        """
        settings = self.stage.settings
        if isinstance(settings, SftStage) and settings.script is not None:
            _ = self.parts.tasks


@dataclass(frozen=True)
class RlPlan(StagePlan):
    """A stage of reinforcement learning.

    Attributes:
        recipe: the stage's recipe, with all that training needs.
        loss: the policy loss.
    """

    recipe: TrainingRecipe
    loss: Loss

    def make_tasks(self, *, plays: bool) -> None:
        """Makes the tasks to train on, and those of the evaluation."""
        if plays:
            _ = self.parts.tasks
        if self.recipe.eval is not None:
            _ = self.parts.eval_tasks
