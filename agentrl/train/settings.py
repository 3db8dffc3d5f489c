"""What can be set about the optimiser and the loss. Free of torch: a recipe is checked without it."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Aggregation = Literal["token_mean", "seq_mean_token_mean", "seq_mean_token_sum_norm"]

LrSchedule = Literal["constant", "linear", "cosine"]


class TrainSettings(BaseModel):
    """Settings of `Trainer.update`. A sequence, in the names of the aggregations, is an episode."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    lr: float = Field(1e-6, gt=0, description="Peak learning rate.")
    lr_schedule: LrSchedule = Field(
        "constant", description="How the rate goes on after the warm-up: constant, or down to 0 over `iterations`."
    )
    betas: tuple[float, float] = Field((0.9, 0.999), description="AdamW's decay rates of the two moments.")
    weight_decay: float = Field(
        0.0, ge=0, description="AdamW's decoupled decay of matrices (never of norms and biases)."
    )
    warmup_steps: int = Field(0, ge=0, description="Optimiser steps over which the learning rate rises from 0.")
    max_grad_norm: float = Field(1.0, gt=0, description="The gradient is scaled down to this 2-norm.")
    epochs: int = Field(1, gt=0, description="Passes over an iteration's rows.")
    minibatch: int = Field(
        64, gt=0, description="Episodes of one optimiser step at most; an iteration's episodes are split evenly."
    )
    loss: str = Field("ppo_clip", description="Which policy loss, by name: ppo_clip, cross_entropy.")
    clip_low: float = Field(0.2, gt=0, description="The probability ratio is clipped below at 1 - clip_low.")
    clip_high: float = Field(0.2, gt=0, description="The probability ratio is clipped above at 1 + clip_high.")
    dual_clip: float | None = Field(
        None,
        gt=1,
        description="With a negative advantage A, a token's loss is at most -dual_clip * A; null: unbounded.",
    )
    aggregation: Aggregation = Field(
        "token_mean",
        description="How tokens are weighted in an optimiser step: all alike (token_mean), every episode alike "
        "(seq_mean_token_mean), or all by 1 / token_norm (seq_mean_token_sum_norm, Dr. GRPO).",
    )
    token_norm: float | None = Field(
        None, gt=0, description="Constant of seq_mean_token_sum_norm, for example the token limit of an episode."
    )
    entropy_bonus: float = Field(0.0, ge=0, description="Weight of the policy's entropy (nats) in the objective.")
    old_logprobs: Literal["recompute", "engine"] = Field(
        "recompute",
        description="Denominator of the probability ratio: recomputed before the first step, or the engine's own.",
    )
    token_budget: int = Field(16384, gt=0, description="Unique tokens of one forward pass; bounds memory.")
    checkpoint_every: int = Field(1, gt=0, description="Iterations between checkpoints.")

    @model_validator(mode="after")
    def _norm_where_it_counts(self) -> TrainSettings:
        if (self.token_norm is not None) != (self.aggregation == "seq_mean_token_sum_norm"):
            raise ValueError("'token_norm' belongs to aggregation: seq_mean_token_sum_norm, which needs it")
        return self
