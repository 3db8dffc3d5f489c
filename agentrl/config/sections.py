"""What the sections of a recipe have in common: short forms, settings that may change, and how a key is found.

A section declares both beside its fields, wherever it stands: loading a recipe, `--set` and going on with a run all
ask here.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator, Sequence
from types import UnionType
from typing import Any, Self, Union

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from agentrl.registry.references import is_reference


class Section(BaseModel):
    """Base of all sections: unknown keys are errors, values never change after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class MayChange:
    """Marks a setting that may differ when a run goes on: `workers: Annotated[int, MAY_CHANGE] = 1`.

    It says where something runs, how long it may take or how much of it there is, and not what an episode is or what
    an optimiser's step does. A marked section may change as a whole.
    """


MAY_CHANGE = MayChange()


class Short(BaseModel):
    """A section with a short form."""

    @classmethod
    def spelled_out(cls, value: Any) -> Any:
        """The mapping that a short form stands for; anything else as it is.

        Raises:
            ValueError: it looks like a short form, and is none.
        """
        raise NotImplementedError

    @model_validator(mode="before")
    @classmethod
    def _spell_out(cls, value: Any) -> Any:
        return cls.spelled_out(value)


class PlugIn(Short):
    """A section that names a plug-in: `gspo`, `{gspo: {clip_low: 0.1}}` or `{use: gspo, clip_low: 0.1}`.

    Keys that the section does not have are settings of the plug-in. Its registry checks them.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    use: Any

    @property
    def settings(self) -> dict[str, Any]:
        """The plug-in's own settings."""
        return dict(self.model_extra or {})

    @property
    def own_keys(self) -> list[str]:
        """The keys of the section that are no settings of the plug-in."""
        return [name for name in type(self).model_fields if name != "use"]

    @classmethod
    def spelled_out(cls, value: Any) -> Any:
        """A name, or a name with its settings."""
        if isinstance(value, dict) and len(value) == 1 and not set(value) & set(cls.model_fields):
            ((name, settings),) = value.items()
            if settings is None or isinstance(settings, dict):
                return {**(settings or {}), "use": name}
            if cls.model_fields["use"].is_required():
                raise ValueError(f"the settings of {name} are keys and values, {{{name}: {{key: value}}}}")
        return alone(value, "use")


class WithPlugIn(PlugIn):
    """A section with keys of its own that names a plug-in, too. Built-ins have no settings but these keys: others are
    errors, unless the plug-in is user code."""

    @model_validator(mode="after")
    def _knows_its_keys(self) -> Self:
        if self.model_extra and not is_reference(self.use):
            raise PydanticCustomError("unknown_key", "unknown key '{key}'", {"key": next(iter(self.model_extra))})
        return self


def alone(value: Any, key: str) -> Any:
    """A string as `{key: string}`; all else as it is."""
    return {key: value} if isinstance(value, str) else value


def misplaced(key: str, message: str, value: Any, remedy: str | None = None) -> ValidationError:
    """The error of a setting that does not fit another one, for a validator of the whole: it names the setting's place.

    Args:
        key: the setting's, dotted.
        message: what is wrong.
    """
    told = message.replace("{", "{{").replace("}", "}}")
    why = PydanticCustomError("misplaced", told, {"remedy": remedy})
    where = tuple(int(part) if part.isdigit() else part for part in key.split("."))
    return ValidationError.from_exception_data("recipe", [{"type": why, "loc": where, "input": value}])


def section_at(root: type[BaseModel], path: Sequence[str | int]) -> type[BaseModel] | None:
    """The section that a path of keys and indices leads to; None if it leads to none."""
    at: Any = [root, *(at for _, at in _way(root, path))][-1]
    return at if _is_section(at) else None


def may_change(root: type[BaseModel], path: Sequence[str | int]) -> bool:
    """Whether the setting at a path, or a section that it is in, is marked with `MAY_CHANGE`."""
    return any(field is not None and MAY_CHANGE in field.metadata for field, _ in _way(root, path))


def _way(root: type[BaseModel], path: Sequence[str | int]) -> Iterator[tuple[FieldInfo | None, Any]]:
    """For each part of the path: its field (None: it is an index, or a key of a mapping), and what lies there."""
    at: Any = root
    for part in path:
        field = at.model_fields.get(str(part)) if _is_section(at) else None
        at = _essence(field.annotation if field is not None else _element(at))
        yield field, at


def _essence(annotation: Any) -> Any:
    """The section, or the list or mapping of them, among what a setting may be; None if there is none."""
    if typing.get_origin(annotation) in (Union, UnionType, typing.Annotated):
        return next((found for each in typing.get_args(annotation) if (found := _essence(each)) is not None), None)
    return annotation if _is_section(annotation) or _element(annotation) is not None else None


def _element(annotation: Any) -> Any:
    """What a list or a mapping holds; None for anything else."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    return {list: arguments[:1], dict: arguments[1:]}.get(origin, (None,))[0]


def _is_section(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, BaseModel)
