"""What a training minimises: the policy loss, KL to a reference, importance weights, and how tokens are weighted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from pydantic import Field, model_validator
from pydantic.json_schema import SkipJsonSchema

from agentrl.config.sections import PlugIn, Section

Aggregation = Literal[
    "token_mean",
    "seq_mean_token_mean",
    "seq_mean_turn_mean",
    "group_mean",
    "seq_mean_token_sum",
    "seq_mean_token_sum_norm",
]


class LossSettings(PlugIn):
    """The `train.loss` key: a name, or `{use: NAME, ...}` with that loss's own settings."""

    use: str | SkipJsonSchema[Callable[..., Any]] = Field(
        "ppo_clip", description="A loss (agentrl list losses), or ./task.py:my_loss."
    )


class PreferenceLossSettings(LossSettings):
    """The `loss` key of a preference stage: a name, or `{use: NAME, ...}` with that loss's own settings."""

    use: str | SkipJsonSchema[Callable[..., Any]] = Field(
        "dpo", description="A preference loss by name, or ./task.py:my_loss."
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
