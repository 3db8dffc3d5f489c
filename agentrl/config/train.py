"""Settings of the optimiser and the loss. This module does not import torch: a recipe is checked without it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator
from pydantic.json_schema import SkipJsonSchema

from agentrl.config.model import REVISION
from agentrl.config.sections import MAY_CHANGE, PlugIn, Section, Short, alone

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
    """Low-rank adapters instead of full training (needs the extra `lora`)."""

    rank: int = Field(16, gt=0, description="Rank of the adapters.")
    alpha: float = Field(32.0, gt=0, description="The adapters' product is scaled by alpha / rank.")
    targets: list[str] | None = Field(
        None, min_length=1, description="Names of linear layers (q_proj, ...); default: all in the decoder layers."
    )


class Trainable(Section):
    """The trained part of the model. Other layers are frozen, and no gradient is computed below the trained part."""

    top_layers: int = Field(
        gt=0, description="Number of topmost decoder layers that train, with the last norm; embeddings are frozen."
    )


_WARMUP = "Number of first iterations in which critic and reward model learn alone, and no policy is updated."


class CriticSettings(Section):
    """The critic (a learned baseline) of estimators that need one (gae, turn_gae, bi_level_gae, ppr, spa, a_lol)."""

    body: Literal["policy", "copy"] = Field(
        "policy", description="Input of the linear head: the policy's hidden states, or those of a trained copy."
    )
    lr: float = Field(1e-3, gt=0, description="Learning rate of the head.")
    body_lr: float = Field(1e-5, gt=0, description="Learning rate of the copy.")
    steps: int = Field(8, gt=0, description="Optimiser steps per iteration, each over all tokens of the iteration.")
    clip: float | None = Field(
        0.5, gt=0, description="Clip range of the value loss: maximum change of a value per iteration; null: none."
    )
    max_grad_norm: float = Field(1.0, gt=0, description="The critic's gradient is clipped to this 2-norm.")
    warmup: int = Field(0, ge=0, description=_WARMUP)


class RewardModelSettings(Section):
    """A copy of the policy trained to separate good from bad episodes, for `implicit_prm`, `istar` and `sweet`."""

    lr: float = Field(1e-6, gt=0, description="Learning rate.")
    steps: int = Field(1, gt=0, description="Optimiser steps per iteration, each over all episodes of the iteration.")
    beta: float = Field(0.05, gt=0, description="Scale of the log-ratio, which is the model's reward.")
    objective: Literal["outcome", "preference"] = Field(
        "outcome",
        description="outcome: cross-entropy of good and bad. preference: DPO on all pairs of a better and a worse "
        "episode of a group; reads no threshold.",
    )
    reward: Literal["sum", "turn_means"] = Field(
        "sum",
        description="The reward of an episode: the sum over its tokens, or over its turns of the mean of their tokens.",
    )
    reference: Literal["start", "policy"] = Field(
        "start", description="What the log-ratio compares with: the policy at the start, or as it sampled the episode."
    )
    sees: str | None = Field(
        None,
        description="Key of the task's data that the model is shown and the policy is not, such as the gold answer: a "
        "message before the first reply.",
    )
    threshold: float = Field(0.5, description="outcome: episodes with at least this reward are good.")
    max_grad_norm: float = Field(10.0, gt=0, description="The gradient is clipped to this 2-norm.")
    warmup: int = Field(0, ge=0, description=_WARMUP)

    @model_validator(mode="after")
    def _compares_like_with_like(self) -> Self:
        if self.sees is not None and self.reference == "policy":
            raise ValueError("'sees' with 'reference: policy': the policy sampled without seeing it; use start")
        return self


class LossSettings(PlugIn):
    """The `train.loss` key: a name, or `{use: NAME, ...}` with the loss's own settings."""

    use: str | SkipJsonSchema[Callable[..., Any]] = Field(
        "ppo_clip", description="A loss (agentrl list losses), or ./task.py:my_loss."
    )


class PreferenceLossSettings(LossSettings):
    """The `loss` key of a preference stage: a name, or `{use: NAME, ...}` with the loss's own settings."""

    use: str | SkipJsonSchema[Callable[..., Any]] = Field(
        "dpo", description="A preference loss (agentrl list preference-losses), or ./task.py:my_loss."
    )


Anchor = Literal["reference", "teacher", "ema_reference"]
"""A policy whose log-probabilities the sampled tokens are compared with: the policy at the start of the stage, a frozen
model (`train.teacher`), or a moving average of the policy (`train.ema_reference`)."""


class TeacherSettings(Section, Short):
    """The `train.teacher` key: a frozen model with the policy's tokenizer, for KL, losses and credit that read it."""

    path: str = Field(description="As model.path: a folder, package:NAME, or OWNER/NAME of the Hugging Face Hub.")
    revision: str | None = Field(None, description=REVISION)

    @classmethod
    def spelled_out(cls, value: Any) -> Any:
        """A string is the path."""
        return alone(value, "path")


class EmaSettings(Section):
    """The `train.ema_reference` key: a reference that follows the policy: decay * reference + (1 - decay) * policy."""

    decay: float = Field(0.995, gt=0, lt=1, description="Share of the reference that an update of it keeps.")
    every: int = Field(1, gt=0, description="Optimiser steps between two updates of it.")


class ImitationLossSettings(LossSettings):
    """The `loss` key of supervised training: a name, or `{use: NAME, ...}` with the loss's own settings."""

    use: str | SkipJsonSchema[Callable[..., Any]] = Field(
        "cross_entropy",
        description="A loss (agentrl list losses), or ./task.py:my_loss. Advantages are 1, or those of `credit`.",
    )


class KlSettings(Section):
    """The `train.kl` key: distance to the reference policy, which is the policy at the start of training.

    With d = log(policy / reference) of a sampled token: k1 = d, k2 = d^2 / 2, k3 = exp(-d) + d - 1, abs = |d|. As a
    loss only k2 has the gradient of the KL divergence (on policy); `k1+` and `k3+` have the value of k1 and k3 and the
    gradient of k2. `unbiased` multiplies by policy / old policy instead, which makes the gradient of k1 and k3 right
    also off policy (DeepSeek-V3.2, arXiv:2512.02556).
    """

    coef: float = Field(gt=0, description="Weight of the KL term.")
    final: float | None = Field(
        None, ge=0, description="Weight at the end of training, to which it moves linearly; null: it stays."
    )
    to: Anchor = Field(
        "reference",
        description="The other policy. reference: the policy at the start of the stage; teacher: train.teacher; "
        "ema_reference: train.ema_reference.",
    )
    estimator: Literal["k1", "k2", "k3", "abs", "k1+", "k3+"] = Field("k3", description="Estimate of each token's KL.")
    place: Literal["loss", "reward"] = Field(
        "loss",
        description="loss: add the term to each token's loss. reward: subtract it from the finest reward that the "
        "estimator reads (of the token, of the turn, or the outcome); refused if the estimator reads none.",
    )
    unbiased: bool = Field(False, description="In the loss: multiply by policy / old policy, with gradient.")

    def at(self, progress: float) -> KlSettings:
        """The settings with the weight after a share of the training."""
        if self.final is None:
            return self
        return self.model_copy(update={"coef": self.coef + progress * (self.final - self.coef)})

    @model_validator(mode="after")
    def _makes_sense(self) -> KlSettings:
        if self.place == "reward" and (self.unbiased or self.estimator.endswith("+")):
            raise ValueError("'unbiased', k1+ and k3+ change gradients; a reward has none: use k1, k2, k3 or abs")
        if self.place == "loss" and self.estimator == "k1" and not self.unbiased:
            raise ValueError("k1 in the loss has a gradient of mean zero; use k1+, k2, k3+, or set unbiased: true")
        if self.unbiased and self.estimator not in ("k1", "k3"):
            raise ValueError("'unbiased' needs the estimator k1 or k3")
        return self


class ImportanceSettings(Section):
    """The `train.importance` key: importance weights for the gap between the engine's policy and the trainer's.

    The weight is old policy / behaviour policy: of the token, of all tokens of its episode (product), or their
    geometric mean. It carries no gradient and multiplies the policy loss.
    """

    level: Literal["token", "sequence", "geometric"] = Field("token", description="Level at which the ratio is taken.")
    mode: Literal["truncate", "mask"] = Field(
        "truncate", description="Weights beyond the bounds. truncate: cut to `high`; mask: drop the tokens (IcePop)."
    )
    high: float = Field(2.0, ge=1, description="Largest weight; with 1, weights can only shrink the loss (DART).")
    low: float | None = Field(None, gt=0, lt=1, description="With mask: smallest weight.")

    @model_validator(mode="after")
    def _low_masks(self) -> ImportanceSettings:
        if self.low is not None and self.mode == "truncate":
            raise ValueError("'low' belongs to mode: mask; truncation only cuts large weights")
        return self


class TrainerSettings(PlugIn):
    """The `train.backend` key: a name, or `{use: NAME, ...}` with the trainer's own settings."""

    use: str = Field("local", description="local: this process, or several ranks; or ./file.py:Trainer.")


class OptimiserSettings(Section):
    """Settings of every kind of training: trained parameters, precision, and the optimiser."""

    backend: TrainerSettings = Field(
        default_factory=TrainerSettings, description="The trainer: what keeps the policy and takes the steps."
    )
    betas: tuple[float, float] = Field((0.9, 0.999), description="AdamW's decay rates of the two moments.")
    weight_decay: float = Field(
        0.0, ge=0, description="AdamW's decoupled weight decay of matrices (never of norms and biases)."
    )
    max_grad_norm: float = Field(1.0, gt=0, description="The gradient is clipped to this 2-norm.")
    packing: Literal["auto", "tree", "rows"] = Field(
        "auto",
        description="tree: shared prefixes are forwarded once. rows: one row per branch with the model's own "
        "attention, for any causal model. auto: tree if the check at load time passes, else rows.",
    )
    router_loss: float | None = Field(
        None,
        ge=0,
        description="Weight of the load-balancing loss of a mixture of experts; null: the weight in the model's "
        "configuration (router_aux_loss_coef), if it has one.",
    )
    token_budget: Annotated[int, MAY_CHANGE] = Field(
        16384, gt=0, description="Maximum number of unique tokens in one forward pass (micro-batch); bounds memory."
    )
    precision: Literal["float32", "bfloat16"] = Field(
        "float32", description="bfloat16: matrix products in bfloat16; weights and optimiser stay in float32."
    )
    head_precision: Literal["float32"] | None = Field(
        None, description="With precision: bfloat16: compute the output layer in float32."
    )
    lora: LoraSettings | None = Field(
        None, description="Train low-rank adapters; vLLM servers get the adapters, the torch engine merged weights."
    )
    trainable: Trainable | None = Field(None, description="Train only a part of the model; null: all of it.")
    freeze_vision_tower: bool = Field(
        False,
        description="Do not train what makes features of images (tower and connector): no activations of it are kept, "
        "and no gradient is computed. lora and trainable freeze it, too.",
    )
    patch_budget: Annotated[int, MAY_CHANGE] = Field(
        16384,
        gt=0,
        description="Maximum number of image patches in one pass of the vision tower (micro-batch); bounds memory. A "
        "larger image has a pass of its own.",
    )
    logits_mb: Annotated[int, MAY_CHANGE] = Field(
        512, gt=0, description="MiB of logits at a time; larger logits are split into chunks and computed twice."
    )
    activation_checkpointing: Annotated[bool, MAY_CHANGE] = Field(
        False, description="Recompute activations within layers in the backward pass: a third more work, less memory."
    )

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        if self.head_precision is not None and self.precision == "float32":
            raise ValueError("'head_precision' needs precision: bfloat16; with float32 the head is float32 already")
        if self.lora is not None and self.trainable is not None:
            raise ValueError("'lora' and 'trainable' both select what trains: set only one of them")
        if self.freeze_vision_tower and (self.lora is not None or self.trainable is not None):
            raise ValueError("'lora' and 'trainable' freeze the vision tower already: leave 'freeze_vision_tower' out")
        return self


class TrainSettings(OptimiserSettings):
    """Settings of `Trainer.update`. In the names of the aggregations, a sequence is an episode."""

    lr: float = Field(1e-6, gt=0, description="Peak learning rate.")
    lr_schedule: LrSchedule = Field(
        "constant", description="Learning rate after the warm-up: constant, or down to 0 over `iterations`."
    )
    warmup_steps: int = Field(0, ge=0, description="Optimiser steps over which the learning rate rises from 0.")
    epochs: int = Field(1, gt=0, description="Passes over the rows of an iteration.")
    minibatch: int = Field(
        64, gt=0, description="Maximum number of episodes per optimiser step; an iteration's episodes are split evenly."
    )
    loss: LossSettings = Field(
        default_factory=LossSettings, description="The policy loss: a name, or {use: NAME, ...} with its settings."
    )
    kl: KlSettings | None = Field(None, description="KL penalty towards the policy at the start of training.")
    teacher: TeacherSettings | None = Field(
        None, description="A frozen model that KL, a loss or credit reads: a path, or {path: PATH}."
    )
    ema_reference: EmaSettings | None = Field(
        None, description="A moving average of the policy that KL, a loss or credit reads."
    )
    importance: ImportanceSettings | None = Field(
        None, description="Importance weights for the gap between the engine's policy and the trainer's."
    )
    aggregation: Aggregation | None = Field(
        None,
        description="Weight of a token in an optimiser step: the same for all tokens (token_mean); the same for every "
        "episode (seq_mean_token_mean), and within it for every turn (seq_mean_turn_mean); the same for every group "
        "(group_mean); 1 / episodes (seq_mean_token_sum); 1 / token_norm (seq_mean_token_sum_norm, Dr. GRPO). null: "
        "the aggregation that the loss was published with.",
    )
    token_norm: float | None = Field(
        None,
        gt=0,
        description="Constant of seq_mean_token_sum_norm, for example the token limit of an episode times the episodes "
        "of a step. The sum is divided by nothing else: with a constant, a step grows with the number of episodes.",
    )
    entropy_bonus: float = Field(
        0.0,
        ge=0,
        description="Weight of the policy's entropy (nats) in the objective; 0 in updates whose advantages are all 0.",
    )
    old_logprobs: Literal["recompute", "engine"] = Field(
        "recompute",
        description="Old log-probabilities of the ratio. recompute: by the trainer, before the first step; engine: as "
        "the engine recorded them.",
    )
    critic: CriticSettings | None = Field(None, description="A critic (learned baseline), for estimators that need it.")
    reward_model: RewardModelSettings | None = Field(
        None, description="An implicit process reward model, for estimators that need it."
    )
    checkpoint_every: Annotated[int, MAY_CHANGE] = Field(1, gt=0, description="Iterations between checkpoints.")
    record_tokens: Annotated[int, MAY_CHANGE] = Field(
        0,
        ge=0,
        description="Number of groups per iteration of whose tokens the run keeps advantage, log-probability, ratio, "
        "entropy and clipping (RUN/tokens); those with an advantage come first. 0: none.",
    )

    def lacks_for_one_step(self, episodes: int) -> list[str]:
        """Lists what an update lacks to be one step on the sum of its groups' gradients.

        Args:
            episodes: number of them in an iteration.
        """
        needed = {
            "epochs: 1": self.epochs == 1,
            f"minibatch: {episodes} (groups times group_size) or more": self.minibatch >= episodes,
            "record_tokens: 0": self.record_tokens == 0,
            "router_loss: 0": not self.router_loss,
            "no critic": self.critic is None,
            "no reward_model": self.reward_model is None,
        }
        return [need for need, met in needed.items() if not met]

    @property
    def warmup(self) -> int:
        """Number of first iterations in which no policy is updated."""
        return max((each.warmup for each in (self.critic, self.reward_model) if each is not None), default=0)

    @model_validator(mode="after")
    def _norm_where_it_counts(self) -> TrainSettings:
        if (self.token_norm is not None) != (self.aggregation == "seq_mean_token_sum_norm"):
            raise ValueError("'token_norm' and aggregation: seq_mean_token_sum_norm must be set together")
        if self.importance is not None and self.old_logprobs == "engine":
            raise ValueError("'importance' needs old_logprobs: recompute; with engine every weight is 1")
        return self
