"""What can be set about the implicit reward model. Free of torch: a recipe is checked without it."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class RewardModelSettings(BaseModel):
    """A copy of the policy that learns to tell good episodes from bad, for credit that needs one (implicit_prm)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    lr: float = Field(1e-6, gt=0, description="Learning rate.")
    steps: int = Field(1, gt=0, description="Optimiser steps an iteration, each over all its episodes.")
    beta: float = Field(0.05, gt=0, description="Scale of the log-ratio that is the model's reward.")
    threshold: float = Field(0.5, description="An episode whose reward reaches this is a good one.")
    max_grad_norm: float = Field(10.0, gt=0, description="The gradient is scaled down to this 2-norm.")
