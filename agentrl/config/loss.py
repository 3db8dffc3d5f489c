"""Which policy losses there are, and what can be set about each. Free of torch: a recipe is checked without it.

The functions themselves are in `losses/`. A loss has settings of its own; one that the chosen loss does not read is
an error that names the loss which does.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.json_schema import SkipJsonSchema

from agentrl.config.sections import Short, named
from agentrl.registry.references import is_reference, load_object
from agentrl.types.errors import TrainError, nearest

Aggregation = Literal[
    "token_mean",
    "seq_mean_token_mean",
    "seq_mean_turn_mean",
    "group_mean",
    "seq_mean_token_sum",
    "seq_mean_token_sum_norm",
]
Scope = Literal["token", "step", "group"]
"""What a loss must see at once: a token; all tokens of an optimiser step; and with them whole groups."""
Sequence = Literal["episode", "turn"]


class NoSettings(BaseModel):
    """Settings of a loss that has none."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Clip(NoSettings):
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


class Sapo(NoSettings):
    """Steepness of the gate for tokens of positive advantage, and for the others."""

    tau_pos: float = Field(1.0, gt=0)
    tau_neg: float = Field(1.05, gt=0)


class Dppo(NoSettings):
    """How far a token's probability may move before its gradient is masked: a difference of probabilities (`dppo_tv`)
    or nats of binary KL (`dppo_kl`), downwards and upwards; and the largest ratio that still counts in full."""

    divergence_low: float = Field(0.15, gt=0)
    divergence_high: float = Field(0.15, gt=0)
    max_ratio: float = Field(20.0, gt=1)


class DppoKl(Dppo):
    """`Dppo` with the thresholds of verl's script for binary KL."""

    divergence_low: float = Field(0.05, gt=0)
    divergence_high: float = Field(0.05, gt=0)


class Pacs(NoSettings):
    """`beta` scales the score; `balance` weighs right and wrong episodes of a group alike."""

    beta: float = Field(1.0, gt=0)
    balance: bool = False


class Nft(NoSettings):
    """`normalise`: weight of a group with success rate r: 1 - r, sqrt((1 - r) / r), or 1. `floor`: least value inside
    the logarithm of wrong episodes, kept by a straight-through clip."""

    normalise: Literal["failure_rate", "odds", "none"] = "failure_rate"
    negative_weight: float = Field(1.0, ge=0)
    floor: float = Field(1.0, gt=0)


@dataclass(frozen=True)
class Loss:
    """A policy loss with what is known about it.

    Attributes:
        function: `(TokenBatch, settings) -> (loss of each token [n], where clipping took its gradient [n, bool])`, or
            `module:name` of one.
        settings: pydantic model of its settings.
        formula: one line for people.
        source: paper or code that the formula comes from.
        scope: what it must see at once. Losses of scope `step` and `group` may use any token of the step; the trainer
            then makes one more forward pass when the step does not fit one pack.
        aggregation: what `train.aggregation: null` means.
    """

    name: str
    function: str | Callable[..., Any]
    settings: type[BaseModel] = NoSettings
    formula: str = ""
    source: str = "user code"
    scope: Scope = "step"
    aggregation: Aggregation = "token_mean"

    def resolve(self) -> Callable[..., Any]:
        """The function; imports torch for the built-in ones."""
        if not isinstance(self.function, str):
            return self.function
        module, _, name = self.function.partition(":")
        function: Callable[..., Any] = getattr(importlib.import_module(f"agentrl.train.losses.{module}"), name)
        return function


_VERL = "volcengine/verl@b178a3c core_algos"
_DPPO = "arXiv:2602.04879; verl core_algos.compute_policy_loss_dppo_"

LOSSES: dict[str, Loss] = {
    each.name: each
    for each in (
        Loss("ppo_clip", "clipped:ppo_clip", PpoClip, "-min(w A, clip(w) A)",
             "arXiv:1707.06347; dual clip arXiv:1912.09729", "token"),
        Loss("dapo", "clipped:ppo_clip", Dapo, "ppo_clip, 0.2 below and 0.28 above",
             "arXiv:2503.14476; " + _VERL, "token"),
        Loss("cispo", "clipped:cispo", Cispo, "-sg(clip(w)) A l", "arXiv:2506.13585; " + _VERL, "token"),
        Loss("sapo", "clipped:sapo", Sapo, "-(4 / tau) sigmoid(tau (w - 1)) A", "arXiv:2511.20347; " + _VERL, "token",
             "seq_mean_token_mean"),
        Loss("dppo_tv", "clipped:dppo_tv", Dppo, "-sg(min(w, max)) A l, masked beyond |p - p_old|", _DPPO + "tv",
             "token"),
        Loss("dppo_kl", "clipped:dppo_kl", DppoKl, "-sg(min(w, max)) A l, masked beyond KL(p_old || p) of the token",
             _DPPO + "kl", "token"),
        Loss("gspo", "sequence:gspo", Gspo, "-min(s A, clip(s) A), s = exp(mean log w)", "arXiv:2507.18071", "step",
             "seq_mean_token_mean"),
        Loss("gspo_token", "sequence:gspo_token", Gspo, "as gspo, s = sg(s) w / sg(w)",
             "arXiv:2507.18071; " + _VERL, "step", "seq_mean_token_mean"),
        Loss("gmpo", "sequence:gmpo", Gmpo, "-A exp(mean of clipped log w)", "arXiv:2507.20673; " + _VERL, "step",
             "seq_mean_token_mean"),
        Loss("reinforce", "plain:reinforce", NoSettings, "-A l", "Williams, 1992", "token"),
        Loss("gpg", "plain:reinforce", NoSettings, "-A l (its scale is in credit `gpg`)", "arXiv:2504.02546; " + _VERL,
             "token"),
        Loss("cross_entropy", "plain:reinforce", NoSettings, "-A l, A = 1 in demonstrations", "maximum likelihood",
             "token"),
        Loss("pacs", "outcome:pacs", Pacs, "BCE(psi - mean of the others, R), psi = beta sum log w",
             "arXiv:2509.02522; ritzz-ai/PACS@bbe1dc6", "group", "seq_mean_token_mean"),
        Loss("nft", "outcome:nft", Nft, "right: -log w; wrong: -log((1 - r w) / (1 - r))",
             "arXiv:2505.18116; NVlabs/NFT@ed8e5b0 dp_actor.py", "group"),
    )
}  # fmt: skip


class LossSettings(Short):
    """The `train.loss` key: a name, or `{use: NAME, ...}` with that loss's own settings."""

    model_config = ConfigDict(extra="allow", frozen=True)

    use: str | SkipJsonSchema[Loss | Callable[..., Any]] = Field("ppo_clip", description=f"One of {', '.join(LOSSES)}.")

    @classmethod
    def spelled_out(cls, value: Any) -> Any:
        """A name, or a name with its settings."""
        return named(value)

    def load(self, base: Path = Path()) -> tuple[Loss, BaseModel]:
        """The loss and its settings, checked. Needs no torch, except for user code.

        Args:
            base: folder that `./task.py:name` is relative to.

        Raises:
            TrainError: no such loss, no such setting, or a value that does not fit.
            RecipeError: a reference to user code that cannot be loaded.
        """
        loss = self._find(base)
        try:
            return loss, loss.settings.model_validate(self.model_extra or {})
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(map(str, first["loc"]))
            if first["type"] == "extra_forbidden":
                raise TrainError(
                    f"loss {loss.name!r} has no setting {key!r}", place=f"train.loss.{key}", remedy=_has(loss, key)
                ) from None
            message = f"{first['msg'][:1].lower()}{first['msg'][1:]}, found {first['input']!r}"
            raise TrainError(message, place=f"train.loss.{key}") from None

    def _find(self, base: Path) -> Loss:
        if isinstance(self.use, str) and not is_reference(self.use):
            if self.use not in LOSSES:
                raise TrainError(f"no loss {self.use!r}", place="train.loss", remedy=nearest(self.use, list(LOSSES)))
            return LOSSES[self.use]
        found = load_object(self.use, base) if isinstance(self.use, str) else self.use
        if isinstance(found, Loss):
            return found
        if not callable(found):
            raise TrainError(f"{self.use!r} is a {type(found).__name__}, not a function", place="train.loss")
        return Loss(getattr(found, "__name__", "loss"), found)


def _has(loss: Loss, key: str) -> str:
    users = [name for name, other in LOSSES.items() if key in other.settings.model_fields]
    if users:
        return f"{', '.join(users)} {'has' if len(users) == 1 else 'have'} it"
    return nearest(key, list(loss.settings.model_fields))


class KlSettings(BaseModel):
    """The `train.kl` key: distance to the reference policy, which is the policy as training began.

    With d = log(policy / reference) of a sampled token: k1 = d, k2 = d^2 / 2, k3 = exp(-d) + d - 1, abs = |d|. As a
    loss only k2 has the gradient of the KL divergence (on policy); `k1+` and `k3+` have the value of k1 and k3 and the
    gradient of k2. `unbiased` multiplies by policy / old policy instead, which makes the gradient of k1 and k3 right
    also off policy (DeepSeek-V3.2, arXiv:2512.02556).
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

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


class ImportanceSettings(BaseModel):
    """The `train.importance` key: corrects for the gap between the engine's policy and the trainer's.

    The weight is old policy / behaviour policy: of the token, of all tokens of its episode (product), or their
    geometric mean. It carries no gradient and multiplies the policy loss.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

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
