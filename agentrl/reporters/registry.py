"""Trackers by name."""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from agentrl.config.recipe import Recipe
from agentrl.config.track import Track
from agentrl.registry.references import is_reference, load_object, wrong_kind
from agentrl.reporters.relay import Guarded
from agentrl.reporters.tracker import Tracker
from agentrl.types.errors import MissingExtra, RecipeError, nearest
from agentrl.types.reporter import Reporter

TRACKERS = {
    "tensorboard": "agentrl.reporters.tensorboard:TensorBoard",
    "wandb": "agentrl.reporters.wandb:WandB",
    "mlflow": "agentrl.reporters.mlflow:MLflow",
    "trackio": "agentrl.reporters.trackio:Trackio",
}


def trackers(recipe: Recipe) -> list[Guarded]:
    """The trackers of a recipe.

    Raises:
        RecipeError: one that does not exist, or a setting that does not fit.
        MissingExtra: its package is not installed.
    """
    names = _names(recipe.track)
    places = [f"track.{index} ({entry.use})" for index, entry in enumerate(recipe.track)]
    return [
        Guarded(_tracker(entry, name, recipe.base, place), place)
        for entry, name, place in zip(recipe.track, names, places, strict=True)
    ]


def _tracker(entry: Track, name: str, base: Path, place: str) -> Reporter:
    kind, settings = _class(entry, base, place), entry.model_extra or {}
    if not issubclass(kind, Tracker):
        return _plain(kind, settings, entry, place)
    try:
        return kind(kind.Settings.model_validate(settings), name)
    except ValidationError as error:
        raise _explained(error, entry, kind, place) from None
    except MissingExtra as error:
        raise error.at(place) from None


def _plain(kind: type[Reporter], settings: dict[str, Any], entry: Track, place: str) -> Reporter:
    """A reporter whose settings are arguments."""
    try:
        return kind(**settings)
    except TypeError as error:
        raise RecipeError(f"{entry.use}: {error}", place=place) from None


def _class(entry: Track, base: Path, place: str) -> type[Reporter]:
    if is_reference(entry.use):
        found = load_object(entry.use, base)
    elif entry.use in TRACKERS:
        module, _, name = TRACKERS[entry.use].partition(":")
        found = getattr(importlib.import_module(module), name)
    else:
        raise RecipeError(f"there is no tracker {entry.use!r}", place=place, remedy=nearest(entry.use, TRACKERS))
    if not _is_reporter(found):
        raise wrong_kind(entry.use, base, place, "a Tracker or another Reporter", _is_reporter)
    return found  # type: ignore[no-any-return]


def _is_reporter(found: Any) -> bool:
    return isinstance(found, type) and issubclass(found, Reporter)


def _explained(error: ValidationError, entry: Track, kind: type[Tracker], place: str) -> RecipeError:
    first = error.errors()[0]
    key = ".".join(map(str, first["loc"]))
    if first["type"] == "extra_forbidden":
        remedy = nearest(key, list(kind.Settings.model_fields))
        return RecipeError(f"{entry.use} has no setting {key!r}", place=f"{place}.{key}", remedy=remedy)
    return RecipeError(f"{first['msg']}, found {first['input']!r}", place=f"{place}.{key}" if key else place)


def _names(entries: Sequence[Track]) -> list[str]:
    """A name for each, that can be a file's; the second of one kind is `wandb-2`."""
    names: list[str] = []
    for entry in entries:
        name = re.sub(r"\W+", "-", entry.use).strip("-")
        earlier = sum(found == name or found.startswith(f"{name}-") for found in names)
        names.append(f"{name}-{earlier + 1}" if earlier else name)
    return names
