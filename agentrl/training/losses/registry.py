"""The registries of policy losses and preference losses. Does not import torch: recipes are checked without it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from agentrl.config.train import ImitationLossSettings, LossSettings, PreferenceLossSettings
from agentrl.registry.registry import Registry, any_function
from agentrl.registry.settings import Declared, declared
from agentrl.training.losses.loss import Loss, PreferenceLoss


def _accept(kind: type[Loss]) -> Callable[[Any], Loss | None]:
    """Accepts a loss, or makes one of the given kind from a function `(batch, settings...)`."""

    def accept(found: Any) -> Loss | None:
        if isinstance(found, Loss):
            return found
        if any_function(found) is None:
            return None
        own = declared(found, ["batch"])
        return kind(found.__name__, lambda batch, settings: found(batch, **own.arguments(settings)), own.model)

    return accept


def _about(loss: Loss) -> dict[str, Any]:
    return {
        "does": loss.formula,
        "code": loss.code,
        "scope": loss.scope,
        "aggregation": loss.aggregation,
        "origin": loss.source,
    }


def _table(*names: str) -> dict[str, str]:
    return {name: f"agentrl.training.losses.catalogue:{name}" for name in names}


LOSSES: Registry[Loss] = Registry(
    kind="loss",
    group="losses",
    key="train.loss",
    built_in=_table(
        "ppo_clip",
        "dapo",
        "cispo",
        "sapo",
        "dppo_tv",
        "dppo_kl",
        "gspo",
        "gspo_token",
        "gmpo",
        "a_lol",
        "reinforce",
        "rec",
        "gpg",
        "awr",
        "cross_entropy",
        "pacs",
        "nft",
        "tea",
        "entropy_sft",
        "trpa",
    ),
    wanted="a Loss, or a function mine(batch, settings...) -> (loss of each token, where it was clipped)",
    accept=_accept(Loss),
    declares=lambda loss: Declared(loss.settings, "settings"),
    about=_about,
)

PREFERENCE_LOSSES: Registry[Loss] = Registry(
    kind="preference loss",
    group="preference-losses",
    key="preference.loss",
    built_in=_table(
        "dpo",
        "ipo",
        "hinge",
        "apo_zero",
        "simpo",
        "cpo",
        "orpo",
        "kto",
        "tpo",
    ),
    wanted="a PreferenceLoss, or a function mine(batch, settings...) -> (loss of each token, where it was clipped)",
    accept=_accept(PreferenceLoss),
    declares=lambda loss: Declared(loss.settings, "settings"),
    about=_about,
)

FAMILIES: dict[type[LossSettings], Registry[Loss]] = {
    LossSettings: LOSSES,
    ImitationLossSettings: LOSSES,
    PreferenceLossSettings: PREFERENCE_LOSSES,
}


def load_loss(settings: LossSettings, base: Path | None = None, place: str | None = None) -> tuple[Loss, BaseModel]:
    """Loads a loss and checks its settings. Does not import torch, except through user code.

    Args:
        base: folder that `./task.py:name` is relative to.
        place: the key that names the loss; default: the key of its kind.

    Raises:
        RecipeError: the loss does not exist, is not a loss, or a setting is wrong.
    """
    found = FAMILIES[type(settings)].chosen(settings, base, place)
    return found.plug_in, found.settings
