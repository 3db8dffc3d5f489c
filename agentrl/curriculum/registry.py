"""The `curriculum` section of a recipe, and the parts by name."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, Field, ValidationError

from agentrl.config.sections import Short, named
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
    "zero_variance": "flat:ZeroVariance",
    "dapo": "flat:Dapo",
    "prof": "prof:Prof",
    "rorecomp": "rorecomp:RoRecomp",
    "relift": "relift:Relift",
}
"""By name: the module in `methods`, and the class."""


class CurriculumPart(Short):
    """One entry of `curriculum`: a name, `{NAME: {...}}`, or `{use: NAME, ...}` with the part's own settings."""

    model_config = ConfigDict(extra="allow", frozen=True)

    use: str = Field(description=f"One of {', '.join(PARTS)}; or ./task.py:MyPart.")

    @classmethod
    def spelled_out(cls, value: Any) -> Any:
        """A name, or a name with its settings."""
        found = named(value)
        if isinstance(found, dict) and "use" not in found and len(found) == 1:
            (name,) = found
            raise ValueError(f"the settings of {name} are keys and values, {{{name}: {{key: value}}}}")
        return found

    def load(self, base: Path, place: str) -> Part:
        """Makes the part.

        Raises:
            RecipeError: no such part, no such setting, or a value that does not fit.
        """
        kind = self._class(base, place)
        try:
            part = kind(kind.Settings.model_validate(self.model_extra or {}))
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(map(str, first["loc"]))
            if first["type"] == "extra_forbidden":
                raise RecipeError(
                    f"{self.use} has no setting {key!r}",
                    place=f"{place}.{key}",
                    remedy=nearest(key, list(kind.Settings.model_fields)),
                ) from None
            message = f"{first['msg'][:1].lower()}{first['msg'][1:]}, found {first['input']!r}"
            if first["type"] == "missing":
                message = f"{self.use} needs the setting {key!r}"
            raise RecipeError(message, place=f"{place}.{key}" if key else place) from None
        part.name = self.use
        return part

    def _class(self, base: Path, place: str) -> type[Part]:
        if is_reference(self.use):
            found = load_object(self.use, base)
        elif self.use in PARTS:
            module, _, name = PARTS[self.use].partition(":")
            found = getattr(importlib.import_module(f"agentrl.curriculum.methods.{module}"), name)
        else:
            raise RecipeError(f"there is no curriculum {self.use!r}", place=place, remedy=nearest(self.use, [*PARTS]))
        if not _is_part(found):
            raise wrong_kind(self.use, base, place, "a Sampler, Schedule or Filter", _is_part)
        if missing := sorted(getattr(found, "__abstractmethods__", ())):
            raise RecipeError(f"{self.use} lacks the method {', '.join(missing)}", place=place)
        return found  # type: ignore[no-any-return]


def _is_part(found: Any) -> bool:
    return isinstance(found, type) and issubclass(found, (Sampler, Schedule, Filter))
