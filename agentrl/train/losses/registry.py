"""The losses by name (policy losses, and preference losses), and what can be set about each. Free of torch: a recipe is
checked without it.

A loss has settings of its own; one that the chosen loss does not read is an error that names the loss which does.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ValidationError

from agentrl.config.loss import Aggregation, LossSettings, PreferenceLossSettings
from agentrl.registry.references import is_reference, load_object
from agentrl.train.losses.settings import (
    Cispo,
    Dapo,
    Dpo,
    Dppo,
    DppoKl,
    Gmpo,
    Gspo,
    Kto,
    Nft,
    NoSettings,
    Pacs,
    Paired,
    PpoClip,
    Sapo,
    Simpo,
    WithSft,
)
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


@dataclass(frozen=True)
class PreferenceLoss(Loss):
    """A loss of episodes that are labelled good (reward 1) or bad (0). A group is a pair; every token of an episode
    carries the loss of its pair, or of the episode.

    Attributes:
        reference: whether it reads the policy that the stage began with.
        paired: whether every group must be a good and a bad episode.
        baseline: whether it reads how far policy and reference are apart on mismatched episodes (`advantage`).
    """

    reference: bool = True
    paired: bool = True
    baseline: bool = False


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


PREFERENCE_LOSSES: dict[str, PreferenceLoss] = {
    each.name: each
    for each in (
        PreferenceLoss("dpo", "preference:dpo", Dpo, "-log sigmoid(beta (d_c - d_r))", "arXiv:2305.18290",
                       "group", "seq_mean_token_mean"),
        PreferenceLoss("ipo", "preference:ipo", Paired, "(mean d_c - mean d_r - 1 / (2 beta))^2", "arXiv:2310.12036",
                       "group", "seq_mean_token_mean"),
        PreferenceLoss("hinge", "preference:hinge", Paired, "max(0, 1 - beta (d_c - d_r))", "arXiv:2309.06657 (RSO)",
                       "group", "seq_mean_token_mean"),
        PreferenceLoss("apo_zero", "preference:apo_zero", Paired, "1 - sigmoid(beta d_c) + sigmoid(beta d_r)",
                       "arXiv:2408.06266", "group", "seq_mean_token_mean"),
        PreferenceLoss("simpo", "preference:simpo", Simpo, "-log sigmoid(beta (mean l_c - mean l_r) - gamma)",
                       "arXiv:2405.14734", "group", "seq_mean_token_mean", reference=False),
        PreferenceLoss("cpo", "preference:cpo", WithSft, "-log sigmoid(beta (l_c - l_r)) + sft * cross-entropy",
                       "arXiv:2401.08417", "group", "seq_mean_token_mean", reference=False),
        PreferenceLoss("orpo", "preference:orpo", WithSft, "-beta log sigmoid(log odds_c - log odds_r) + cross-entropy",
                       "arXiv:2403.07691", "group", "seq_mean_token_mean", reference=False),
        PreferenceLoss("kto", "preference:kto", Kto, "good: 1 - sigmoid(beta (d - z)); bad: 1 - sigmoid(beta (z - d))",
                       "arXiv:2402.01306", "group", "seq_mean_token_mean", paired=False, baseline=True),
    )
}  # fmt: skip


@dataclass(frozen=True)
class Family:
    """Losses of one kind of training.

    Attributes:
        kind: makes one of a function.
        place: the key that names the loss, for messages.
    """

    table: Mapping[str, Loss]
    kind: Callable[..., Loss]
    place: str


FAMILIES: dict[type[LossSettings], Family] = {
    LossSettings: Family(LOSSES, Loss, "train.loss"),
    PreferenceLossSettings: Family(PREFERENCE_LOSSES, PreferenceLoss, "preference.loss"),
}


def load_loss(settings: LossSettings, base: Path = Path()) -> tuple[Loss, BaseModel]:
    """The loss and its settings, checked. Needs no torch, except for user code.

    Args:
        base: folder that `./task.py:name` is relative to.

    Raises:
        TrainError: no such loss, no such setting, or a value that does not fit.
        RecipeError: a reference to user code that cannot be loaded.
    """
    family = FAMILIES[type(settings)]
    loss = _find(settings, family, base)
    try:
        return loss, loss.settings.model_validate(settings.model_extra or {})
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        if first["type"] == "extra_forbidden":
            raise TrainError(
                f"loss {loss.name!r} has no setting {key!r}",
                place=f"{family.place}.{key}",
                remedy=_has(family, loss, key),
            ) from None
        message = f"{first['msg'][:1].lower()}{first['msg'][1:]}, found {first['input']!r}"
        raise TrainError(message, place=f"{family.place}.{key}") from None


def _find(settings: LossSettings, family: Family, base: Path) -> Loss:
    if isinstance(settings.use, str) and not is_reference(settings.use):
        if settings.use not in family.table:
            remedy = nearest(settings.use, list(family.table))
            raise TrainError(f"no loss {settings.use!r}", place=family.place, remedy=remedy)
        return family.table[settings.use]
    found = load_object(settings.use, base) if isinstance(settings.use, str) else settings.use
    if isinstance(found, Loss):
        return found
    if not callable(found):
        raise TrainError(f"{settings.use!r} is a {type(found).__name__}, not a function", place=family.place)
    return family.kind(getattr(found, "__name__", "loss"), found)


def _has(family: Family, loss: Loss, key: str) -> str:
    users = [name for name, other in family.table.items() if key in other.settings.model_fields]
    if users:
        return f"{', '.join(users)} {'has' if len(users) == 1 else 'have'} it"
    return nearest(key, list(loss.settings.model_fields))
