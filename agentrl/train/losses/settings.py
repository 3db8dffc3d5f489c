"""What can be set about each loss."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from agentrl.config.sections import Section

Sequence = Literal["episode", "turn"]


class Clip(Section):
    """The probability ratio is clipped to 1 - clip_low .. 1 + clip_high."""

    clip_low: float = Field(0.2, gt=0)
    clip_high: float = Field(0.2, gt=0)


class PpoClip(Clip):
    """With a negative advantage A a token's loss is at most -dual_clip * A; None: unbounded."""

    dual_clip: float | None = Field(None, gt=1)


class Dapo(PpoClip):
    """PPO's clip with the bounds of DAPO."""

    clip_high: float = Field(0.28, gt=0)
    dual_clip: float | None = Field(10.0, gt=1)


class Gspo(Clip):
    """`sequence`: whose mean log-ratio is clipped, the whole episode's or each turn's."""

    clip_low: float = Field(3e-4, gt=0)
    clip_high: float = Field(4e-4, gt=0)
    sequence: Sequence = "episode"


class Cispo(Clip):
    """`clip_low` None: no lower bound."""

    clip_low: float | None = Field(None, gt=0)  # type: ignore[assignment]


class Gmpo(Clip):
    """The log-ratio of a token is clipped to -clip_low .. clip_high. `sequence` as in `Gspo`."""

    clip_low: float = Field(0.4, gt=0)
    clip_high: float = Field(0.4, gt=0)
    sequence: Sequence = "episode"


class Sapo(Section):
    """Steepness of the gate for tokens of positive advantage, and for the others."""

    tau_pos: float = Field(1.0, gt=0)
    tau_neg: float = Field(1.05, gt=0)


class Dppo(Section):
    """How far a token's probability may move before its gradient is masked: a difference of probabilities (`dppo_tv`)
    or nats of binary KL (`dppo_kl`), downwards and upwards; and the largest ratio that still counts in full."""

    divergence_low: float = Field(0.15, gt=0)
    divergence_high: float = Field(0.15, gt=0)
    max_ratio: float = Field(20.0, gt=1)


class DppoKl(Dppo):
    """`Dppo` with the thresholds of verl's script for binary KL."""

    divergence_low: float = Field(0.05, gt=0)
    divergence_high: float = Field(0.05, gt=0)


class Pacs(Section):
    """`beta` scales the score; `balance` weighs right and wrong episodes of a group alike."""

    beta: float = Field(1.0, gt=0)
    balance: bool = False


class Nft(Section):
    """`normalise`: weight of a group with success rate r: 1 - r, sqrt((1 - r) / r), or 1. `floor`: least value inside
    the logarithm of wrong episodes, kept by a straight-through clip."""

    normalise: Literal["failure_rate", "odds", "none"] = "failure_rate"
    negative_weight: float = Field(1.0, ge=0)
    floor: float = Field(1.0, gt=0)


class Paired(Section):
    """`sft`: weight of the chosen episodes' cross-entropy (mean over their tokens), which keeps them likely (RPO)."""

    beta: float = Field(0.1, gt=0)
    sft: float = Field(0.0, ge=0)


class Dpo(Paired):
    """`label_smoothing`: the share of pairs whose labels are taken to be wrong (conservative DPO). `per_token`: compare
    mean log-ratios, so that length does not count."""

    label_smoothing: float = Field(0.0, ge=0, lt=0.5)
    per_token: bool = False


class Simpo(Paired):
    """`gamma`: by how much beta times the mean log-probability of the chosen episode is to be the greater one."""

    beta: float = Field(2.0, gt=0)
    gamma: float = Field(1.0, ge=0)


class WithSft(Paired):
    """`Paired`, with the cross-entropy that the method was published with."""

    sft: float = Field(1.0, ge=0)


class Kto(Section):
    """`desirable` and `undesirable` weigh good and bad episodes."""

    beta: float = Field(0.1, gt=0)
    desirable: float = Field(1.0, ge=0)
    undesirable: float = Field(1.0, ge=0)
