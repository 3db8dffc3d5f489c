"""The parts of a curriculum by name."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from agentrl.config.tasks import CurriculumPart
from agentrl.curriculum.parts import Filter, Part, Sampler, Schedule
from agentrl.registry.references import is_reference, load_object, wrong_kind
from agentrl.types.errors import RecipeError, nearest

PARTS = {
    "dump": "sources:Dump",
    "dads": "sources:Dads",
    "vas": "difficulty:Vas",
    "vade": "difficulty:Vade",
    "limr": "limr:Limr",
    "scaling_inter": "horizon:ScalingInter",
    "zerosearch": "noise:ZeroSearch",
    "seele": "hints:Seele",
    "dart_rollouts": "dart:DartRollouts",
    "dart_turns": "dart:DartTurns",
    "dart_successes": "dart:DartSuccesses",
    "zero_variance": "zero_variance:ZeroVariance",
    "dapo": "zero_variance:DynamicSampling",
    "prof": "prof:Prof",
    "rorecomp": "rorecomp:RoRecomp",
    "relift": "relift:Relift",
}
"""By name: the module in `methods`, and the class."""


def load_part(entry: CurriculumPart, base: Path, place: str) -> Part:
    """Makes the part.

    Raises:
        RecipeError: no such part, no such setting, or a value that does not fit.
    """
    kind = _class(entry, base, place)
    try:
        part = kind(kind.Settings.model_validate(entry.model_extra or {}))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        if first["type"] == "extra_forbidden":
            raise RecipeError(
                f"{entry.use} has no setting {key!r}",
                place=f"{place}.{key}",
                remedy=nearest(key, list(kind.Settings.model_fields)),
            ) from None
        message = f"{first['msg'][:1].lower()}{first['msg'][1:]}, found {first['input']!r}"
        if first["type"] == "missing":
            message = f"{entry.use} needs the setting {key!r}"
        raise RecipeError(message, place=f"{place}.{key}" if key else place) from None
    part.name = entry.use
    return part


def _class(entry: CurriculumPart, base: Path, place: str) -> type[Part]:
    if is_reference(entry.use):
        found = load_object(entry.use, base)
    elif entry.use in PARTS:
        module, _, name = PARTS[entry.use].partition(":")
        found = getattr(importlib.import_module(f"agentrl.curriculum.methods.{module}"), name)
    else:
        raise RecipeError(f"there is no curriculum {entry.use!r}", place=place, remedy=nearest(entry.use, [*PARTS]))
    if not _is_part(found):
        raise wrong_kind(entry.use, base, place, "a Sampler, Schedule or Filter", _is_part)
    if missing := sorted(getattr(found, "__abstractmethods__", ())):
        raise RecipeError(f"{entry.use} lacks the method {', '.join(missing)}", place=place)
    return found  # type: ignore[no-any-return]


def _is_part(found: Any) -> bool:
    return isinstance(found, type) and issubclass(found, (Sampler, Schedule, Filter))
