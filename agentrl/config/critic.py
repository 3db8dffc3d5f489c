"""What can be set about the critic. Free of torch: a recipe is checked without it."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class CriticSettings(BaseModel):
    """A learned baseline, for credit that needs one (gae, turn_gae, bi_level_gae, ppr, spa)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    body: Literal["policy", "copy"] = Field(
        "policy", description="What the linear head reads: the policy's hidden states, or those of a copy of its own."
    )
    lr: float = Field(1e-3, gt=0, description="Learning rate of the head.")
    body_lr: float = Field(1e-5, gt=0, description="Learning rate of the copy.")
    steps: int = Field(8, gt=0, description="Optimiser steps an iteration, each over all its tokens.")
    clip: float | None = Field(
        0.5, gt=0, description="A value moves no farther than this in an iteration, as far as the loss says; null: any."
    )
    max_grad_norm: float = Field(1.0, gt=0, description="The critic's gradient is scaled down to this 2-norm.")
