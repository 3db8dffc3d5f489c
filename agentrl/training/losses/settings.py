"""The settings of each loss."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from agentrl.config.sections import Section

Sequence = Literal["episode", "turn", "span"]


class Clip(Section):
    """The probability ratio is clipped to 1 - clip_low .. 1 + clip_high."""

    clip_low: float = Field(0.2, gt=0)
    clip_high: float = Field(0.2, gt=0)


class PpoClip(Clip):
    """`dual_clip`: with a negative advantage A the loss of a token is at most -dual_clip * A; None: unbounded."""

    dual_clip: float | None = Field(None, gt=1)


class Dapo(PpoClip):
    """PPO's clip with the bounds of DAPO."""

    clip_high: float = Field(0.28, gt=0)
    dual_clip: float | None = Field(10.0, gt=1)


class Gspo(Clip):
    """`sequence`: the mean log-ratio of the whole episode, of each turn, or of each span of a turn is clipped."""

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


class Alol(Section):
    """The importance weight is clipped to 1 - clip .. 1 + clip. `weight`: one for the `episode`, the product over its
    tokens (A-LoL), or one for each `token` (A-LoL seq.). A-LoL ref. free is `reinforce`."""

    clip: float = Field(0.9, gt=0)
    weight: Literal["episode", "token"] = "episode"


class Awr(Section):
    """`beta`: temperature of the weights, which are at most `max_weight`."""

    beta: float = Field(1.0, gt=0)
    max_weight: float = Field(20.0, gt=0)


class Rec(Clip):
    """`clip`: tokens without a gradient. `one_side`: whose ratio is beyond the bound towards which A moves it;
    `two_side`: beyond either bound; `ring`: beyond either bound, unless A moves it back from beyond `ring_low` or
    `ring_high`; `none`: no token. `weight`: factor of a token: 1, its ratio, or exp(A / temperature), which prefers
    successes. `regulariser`: times `coef`, (log w)^2 (as OPMD) or -l (as AsymRE) is added to the loss."""

    clip: Literal["one_side", "two_side", "ring", "none"] = "one_side"
    weight: Literal["none", "ratio", "advantage"] = "none"
    regulariser: Literal["none", "k2", "forward_kl"] = "none"
    coef: float = Field(0.1, ge=0)
    temperature: float = Field(1.0, gt=0)
    ring_low: float = Field(0.6, gt=0, le=1)
    ring_high: float = Field(2.0, gt=0)


class Sapo(Section):
    """Steepness of the gate for tokens with positive advantage (`tau_pos`) and for the others (`tau_neg`)."""

    tau_pos: float = Field(1.0, gt=0)
    tau_neg: float = Field(1.05, gt=0)


class Dppo(Section):
    """`divergence_low`, `divergence_high`: how far the probability of a token may move down or up before its gradient
    is masked, as a difference of probabilities (`dppo_tv`) or as binary KL in nats (`dppo_kl`). `max_ratio`: upper
    bound of the ratio."""

    divergence_low: float = Field(0.15, gt=0)
    divergence_high: float = Field(0.15, gt=0)
    max_ratio: float = Field(20.0, gt=1)


class DppoKl(Dppo):
    """`Dppo` with the thresholds of verl's script for binary KL."""

    divergence_low: float = Field(0.05, gt=0)
    divergence_high: float = Field(0.05, gt=0)


class Pacs(Section):
    """`beta` scales the score; `balance` gives right and wrong episodes of a group equal total weight."""

    beta: float = Field(1.0, gt=0)
    balance: bool = False


class Nft(Section):
    """`normalise`: weight of a group with success rate r: 1 - r, sqrt((1 - r) / r), or 1. `floor`: lower bound inside
    the logarithm of wrong episodes, by a straight-through clip."""

    normalise: Literal["failure_rate", "odds", "none"] = "failure_rate"
    negative_weight: float = Field(1.0, ge=0)
    floor: float = Field(1.0, gt=0)


class Tea(PpoClip):
    """`scale`, `bound`: a token's entropy bonus is scale * its share of the covariance of its episode, at most bound.
    The clip is that of the authors' scripts."""

    clip_low: float = Field(1.0, gt=0)
    clip_high: float = Field(1.0, gt=0)
    dual_clip: float | None = Field(10.0, gt=1)
    scale: float = Field(10.0, gt=0)
    bound: float = Field(5.0, gt=0)


class EntropySft(Section):
    """`share`: of the tokens that train. `coef`: weight of the entropy in the choice of them."""

    share: float = Field(0.2, gt=0, le=1)
    coef: float = Field(1.0, ge=0)


class Trpa(Section):
    """`top`: reward of the best level, whose pairs weigh `anisotropy` times beta. `trust`: weight of the KL to the old
    policy."""

    beta: float = Field(0.1, gt=0)
    anisotropy: float = Field(2.5, gt=0)
    top: float = 1.0
    trust: float = Field(0.001, ge=0)


class Paired(Section):
    """`sft`: weight of the cross-entropy of chosen episodes (mean over their tokens), which keeps them likely (RPO)."""

    beta: float = Field(0.1, gt=0)
    sft: float = Field(0.0, ge=0)


class Dpo(Paired):
    """`label_smoothing`: assumed share of wrong labels (conservative DPO). `per_token`: compare mean log-ratios, so
    that length does not matter."""

    label_smoothing: float = Field(0.0, ge=0, lt=0.5)
    per_token: bool = False


class Simpo(Paired):
    """`gamma`: target margin of beta * mean log-probability between chosen and rejected episode."""

    beta: float = Field(2.0, gt=0)
    gamma: float = Field(1.0, ge=0)


class WithSft(Paired):
    """`Paired` with the weight of the cross-entropy from the method's paper."""

    sft: float = Field(1.0, ge=0)


class Tpo(Section):
    """`alpha`: weight of the cross-entropy of the gold reply. `per_token`: compare mean log-probabilities, with the
    target margin `gamma` (TPO-L)."""

    beta: float = Field(0.01, gt=0)
    alpha: float = Field(1.0, ge=0)
    per_token: bool = False
    gamma: float = Field(0.0, ge=0)


class Kto(Section):
    """`desirable`, `undesirable`: weights of good and bad episodes."""

    beta: float = Field(0.1, gt=0)
    desirable: float = Field(1.0, ge=0)
    undesirable: float = Field(1.0, ge=0)
