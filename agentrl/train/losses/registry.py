"""The policy losses by name, and what can be set about each. Free of torch: a recipe is checked without it.

A loss has settings of its own; one that the chosen loss does not read is an error that names the loss which does.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ValidationError

from agentrl.config.loss import Aggregation, LossSettings
from agentrl.registry.references import is_reference, load_object
from agentrl.train.losses.settings import Cispo, Dapo, Dppo, DppoKl, Gmpo, Gspo, Nft, NoSettings, Pacs, PpoClip, Sapo
from agentrl.types.errors import TrainError, nearest

Scope = Literal["token", "step", "group"]
"""What a loss must see at once: a token; all tokens of an optimiser step; and with them whole groups."""


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


def load_loss(settings: LossSettings, base: Path = Path()) -> tuple[Loss, BaseModel]:
    """The loss and its settings, checked. Needs no torch, except for user code.

    Args:
        base: folder that `./task.py:name` is relative to.

    Raises:
        TrainError: no such loss, no such setting, or a value that does not fit.
        RecipeError: a reference to user code that cannot be loaded.
    """
    loss = _find(settings, base)
    try:
        return loss, loss.settings.model_validate(settings.model_extra or {})
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        if first["type"] == "extra_forbidden":
            raise TrainError(
                f"loss {loss.name!r} has no setting {key!r}", place=f"train.loss.{key}", remedy=_has(loss, key)
            ) from None
        message = f"{first['msg'][:1].lower()}{first['msg'][1:]}, found {first['input']!r}"
        raise TrainError(message, place=f"train.loss.{key}") from None


def _find(settings: LossSettings, base: Path) -> Loss:
    if isinstance(settings.use, str) and not is_reference(settings.use):
        if settings.use not in LOSSES:
            raise TrainError(
                f"no loss {settings.use!r}", place="train.loss", remedy=nearest(settings.use, list(LOSSES))
            )
        return LOSSES[settings.use]
    found = load_object(settings.use, base) if isinstance(settings.use, str) else settings.use
    if isinstance(found, Loss):
        return found
    if not callable(found):
        raise TrainError(f"{settings.use!r} is a {type(found).__name__}, not a function", place="train.loss")
    return Loss(getattr(found, "__name__", "loss"), found)


def _has(loss: Loss, key: str) -> str:
    users = [name for name, other in LOSSES.items() if key in other.settings.model_fields]
    if users:
        return f"{', '.join(users)} {'has' if len(users) == 1 else 'have'} it"
    return nearest(key, list(loss.settings.model_fields))
