"""What can be set about the optimiser and the loss. Free of torch: a recipe is checked without it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator
from pydantic.json_schema import SkipJsonSchema

from agentrl.config.sections import MAY_CHANGE, PlugIn, Section

Aggregation = Literal[
    "token_mean",
    "seq_mean_token_mean",
    "seq_mean_turn_mean",
    "group_mean",
    "seq_mean_token_sum",
    "seq_mean_token_sum_norm",
]
LrSchedule = Literal["constant", "linear", "cosine"]


class LoraSettings(Section):
    """Low-rank adapters in place of full training (needs the extra `lora`)."""

    rank: int = Field(16, gt=0, description="Rank of the adapters.")
    alpha: float = Field(32.0, gt=0, description="Their product is scaled by alpha / rank.")
    targets: list[str] | None = Field(
        None, min_length=1, description="Names of linear layers (q_proj, ...); default: all within the decoder layers."
    )


class Trainable(Section):
    """Which part of the model trains; the rest stays, and no gradient is computed below it."""

    top_layers: int = Field(gt=0, description="The topmost decoder layers and the last norm train; embeddings stay.")


class CriticSettings(Section):
    """A learned baseline, for credit that needs one (gae, turn_gae, bi_level_gae, ppr, spa)."""

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


class RewardModelSettings(Section):
    """A copy of the policy that learns to tell good episodes from bad, for credit that needs one (implicit_prm)."""

    lr: float = Field(1e-6, gt=0, description="Learning rate.")
    steps: int = Field(1, gt=0, description="Optimiser steps an iteration, each over all its episodes.")
    beta: float = Field(0.05, gt=0, description="Scale of the log-ratio that is the model's reward.")
    threshold: float = Field(0.5, description="An episode whose reward reaches this is a good one.")
    max_grad_norm: float = Field(10.0, gt=0, description="The gradient is scaled down to this 2-norm.")


class LossSettings(PlugIn):
    """The `train.loss` key: a name, or `{use: NAME, ...}` with that loss's own settings."""

    use: str | SkipJsonSchema[Callable[..., Any]] = Field(
        "ppo_clip", description="A loss (agentrl list losses), or ./task.py:my_loss."
    )


class PreferenceLossSettings(LossSettings):
    """The `loss` key of a preference stage: a name, or `{use: NAME, ...}` with that loss's own settings."""

    use: str | SkipJsonSchema[Callable[..., Any]] = Field(
        "dpo", description="A preference loss (agentrl list preference-losses), or ./task.py:my_loss."
    )


class KlSettings(Section):
    """The `train.kl` key: distance to the reference policy, which is the policy as training began.

    With d = log(policy / reference) of a sampled token: k1 = d, k2 = d^2 / 2, k3 = exp(-d) + d - 1, abs = |d|. As a
    loss only k2 has the gradient of the KL divergence (on policy); `k1+` and `k3+` have the value of k1 and k3 and the
    gradient of k2. `unbiased` multiplies by policy / old policy instead, which makes the gradient of k1 and k3 right
    also off policy (DeepSeek-V3.2, arXiv:2512.02556).
    """

    coef: float = Field(gt=0, description="Weight of the KL term.")
    estimator: Literal["k1", "k2", "k3", "abs", "k1+", "k3+"] = Field("k3", description="Estimate of each token's KL.")
    place: Literal["loss", "reward"] = Field(
        "loss",
        description="Added to each token's loss, or subtracted from the finest reward that credit reads: that of the "
        "token, of its turn, or the outcome. Refused with credit that reads none.",
    )
    unbiased: bool = Field(False, description="In the loss: weigh by policy / old policy, with gradient.")

    @model_validator(mode="after")
    def _makes_sense(self) -> KlSettings:
        if self.place == "reward" and (self.unbiased or self.estimator.endswith("+")):
            raise ValueError("'unbiased', k1+ and k3+ are about gradients; a reward has none: take k1, k2, k3 or abs")
        if self.place == "loss" and self.estimator == "k1" and not self.unbiased:
            raise ValueError("k1 in the loss has a gradient of mean zero; take k1+, k2, k3+, or set unbiased: true")
        if self.unbiased and self.estimator not in ("k1", "k3"):
            raise ValueError("'unbiased' goes with k1 and k3")
        return self


class ImportanceSettings(Section):
    """The `train.importance` key: corrects for the gap between the engine's policy and the trainer's.

    The weight is old policy / behaviour policy: of the token, of all tokens of its episode (product), or their
    geometric mean. It carries no gradient and multiplies the policy loss.
    """

    level: Literal["token", "sequence", "geometric"] = Field("token", description="Of what the ratio is taken.")
    mode: Literal["truncate", "mask"] = Field(
        "truncate", description="Beyond the bounds: cut to `high`, or dropped (IcePop; `low` counts only here)."
    )
    high: float = Field(2.0, ge=1, description="Largest weight; 1 only ever weakens (DART).")
    low: float | None = Field(None, gt=0, lt=1, description="With mask: smallest weight.")

    @model_validator(mode="after")
    def _low_masks(self) -> ImportanceSettings:
        if self.low is not None and self.mode == "truncate":
            raise ValueError("'low' belongs to mode: mask; truncation only cuts large weights")
        return self


class OptimiserSettings(Section):
    """What trains, in which numbers, and how a step is taken: in every kind of training."""

    betas: tuple[float, float] = Field((0.9, 0.999), description="AdamW's decay rates of the two moments.")
    weight_decay: float = Field(
        0.0, ge=0, description="AdamW's decoupled decay of matrices (never of norms and biases)."
    )
    max_grad_norm: float = Field(1.0, gt=0, description="The gradient is scaled down to this 2-norm.")
    packing: Literal["auto", "tree", "rows"] = Field(
        "auto",
        description="tree: shared prefixes are forwarded once. rows: one row per branch with the model's own "
        "attention, for any causal model. auto: tree where the load-time proof holds, else rows.",
    )
    router_loss: float | None = Field(
        None,
        ge=0,
        description="Weight of the load-balancing loss of a mixture of experts' routers; null: the model's own "
        "(router_aux_loss_coef of its configuration), where it has one.",
    )
    token_budget: Annotated[int, MAY_CHANGE] = Field(
        16384, gt=0, description="Unique tokens of one forward pass; bounds memory."
    )
    precision: Literal["float32", "bfloat16"] = Field(
        "float32", description="bfloat16: matrix products in that; weights and optimiser stay in float32."
    )
    head_precision: Literal["float32"] | None = Field(
        None, description="With precision: bfloat16: the output layer's product in float32 all the same."
    )
    lora: LoraSettings | None = Field(
        None, description="Train low-rank adapters; vLLM servers get the adapters, the torch engine merged weights."
    )
    trainable: Trainable | None = Field(None, description="Train a part of the model; null: all of it.")
    logits_mb: Annotated[int, MAY_CHANGE] = Field(
        512, gt=0, description="MiB of logits at a time; beyond, they come in chunks and are computed twice."
    )
    activation_checkpointing: Annotated[bool, MAY_CHANGE] = Field(
        False, description="Keep no activations within layers; a third more work for a fraction of the memory."
    )

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        if self.head_precision is not None and self.precision == "float32":
            raise ValueError("'head_precision' belongs to precision: bfloat16; with float32 the head is in it already")
        if self.lora is not None and self.trainable is not None:
            raise ValueError("'lora' and 'trainable' both say what trains: give one of them")
        return self


class TrainSettings(OptimiserSettings):
    """Settings of `Trainer.update`. A sequence, in the names of the aggregations, is an episode."""

    lr: float = Field(1e-6, gt=0, description="Peak learning rate.")
    lr_schedule: LrSchedule = Field(
        "constant", description="How the rate goes on after the warm-up: constant, or down to 0 over `iterations`."
    )
    warmup_steps: int = Field(0, ge=0, description="Optimiser steps over which the learning rate rises from 0.")
    epochs: int = Field(1, gt=0, description="Passes over an iteration's rows.")
    minibatch: int = Field(
        64, gt=0, description="Episodes of one optimiser step at most; an iteration's episodes are split evenly."
    )
    loss: LossSettings = Field(
        default_factory=LossSettings, description="Which policy loss: a name, or {use: NAME, ...} with its settings."
    )
    kl: KlSettings | None = Field(None, description="Keeps the policy near the one that training began with.")
    importance: ImportanceSettings | None = Field(
        None, description="Corrects for the gap between the engine's policy and the trainer's."
    )
    aggregation: Aggregation | None = Field(
        None,
        description="How tokens are weighted in an optimiser step: all alike (token_mean), every episode alike "
        "(seq_mean_token_mean), and in it every turn (seq_mean_turn_mean), every group alike (group_mean), by "
        "1 / episodes (seq_mean_token_sum), or by 1 / token_norm (seq_mean_token_sum_norm, Dr. GRPO); null: what the "
        "loss was published with.",
    )
    token_norm: float | None = Field(
        None,
        gt=0,
        description="Constant of seq_mean_token_sum_norm, for example the token limit of an episode times the episodes "
        "of a step: it alone divides, so that otherwise a step grows with their number.",
    )
    entropy_bonus: float = Field(0.0, ge=0, description="Weight of the policy's entropy (nats) in the objective.")
    old_logprobs: Literal["recompute", "engine"] = Field(
        "recompute",
        description="Denominator of the probability ratio: recomputed before the first step, or the engine's own.",
    )
    critic: CriticSettings | None = Field(None, description="A learned baseline, for credit that needs one.")
    reward_model: RewardModelSettings | None = Field(
        None, description="An implicit process reward model, for credit that needs one."
    )
    checkpoint_every: Annotated[int, MAY_CHANGE] = Field(1, gt=0, description="Iterations between checkpoints.")

    @model_validator(mode="after")
    def _norm_where_it_counts(self) -> TrainSettings:
        if (self.token_norm is not None) != (self.aggregation == "seq_mean_token_sum_norm"):
            raise ValueError("'token_norm' belongs to aggregation: seq_mean_token_sum_norm, which needs it")
        if self.importance is not None and self.old_logprobs == "engine":
            raise ValueError("'importance' corrects old_logprobs: recompute; with engine every weight is 1")
        return self
