"""Shared parts of the recipe's sections: short forms, settings that may change, and the lookup of a key.

A section declares its short form and its changeable settings with its fields. The recipe loader, `--set` and the
check of a resumed run use these declarations.
"""

from __future__ import annotations

import copy
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import UnionType
from typing import Any, ClassVar, Self, Union

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from agentrl.registry.installed import is_foreign


class NamesFile:
    """Marks a setting that names files or code: `path: Annotated[str, NAMES_FILE]`.

    Its texts are relative to the file that sets them if they begin with `./` or `../`. A setting that is always a path
    is marked with `IS_FILE`: there, all other texts but absolute paths are relative as well.
    """


NAMES_FILE, IS_FILE = NamesFile(), NamesFile()


class _Keys(BaseModel):
    @classmethod
    def names_file(cls, key: str, written: Mapping[str, Any]) -> NamesFile | None:
        """Returns the mark of a key that names files or code, else None.

        Args:
            written: the section, without short forms.
        """
        field = cls.model_fields.get(key)
        marks = field.metadata if field is not None else ()
        return next((mark for mark in marks if isinstance(mark, NamesFile)), None)


class Section(_Keys):
    """Base of all sections. Unknown keys are errors, and a loaded section is immutable.

    Attributes:
        named_by: keys that decide what the section's other keys mean. A profile that changes one replaces the section.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    named_by: ClassVar[tuple[str, ...]] = ()


class MayChange:
    """Marks a setting that may differ when a run is resumed: `workers: Annotated[int, MAY_CHANGE] = 1`.

    A marked setting defines a location, a time limit or a number of workers. It does not change an episode or an
    optimiser step. A marked section may change as a whole.
    """


MAY_CHANGE = MayChange()


class Short(_Keys):
    """A section with a short form."""

    @classmethod
    def spelled_out(cls, value: Any) -> Any:
        """Expands a short form to its mapping. Returns any other value unchanged.

        Raises:
            ValueError: the value looks like a short form but is not valid.
        """
        raise NotImplementedError

    @model_validator(mode="before")
    @classmethod
    def _spell_out(cls, value: Any) -> Any:
        return cls.spelled_out(value)


class PlugIn(Short):
    """A section that names a plug-in: `gspo`, `{gspo: {clip_low: 0.1}}` or `{use: gspo, clip_low: 0.1}`.

    Keys that the section does not define are settings of the plug-in. The plug-in's registry checks them.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    named_by: ClassVar[tuple[str, ...]] = ("use",)

    use: Any

    @classmethod
    def names_file(cls, key: str, written: Mapping[str, Any]) -> NamesFile | None:
        """A plug-in may be code, and its registry resolves paths and references in its settings."""
        return NAMES_FILE if key == "use" or key not in cls.model_fields else super().names_file(key, written)

    @property
    def settings(self) -> dict[str, Any]:
        """The plug-in's own settings."""
        return dict(self.model_extra or {})

    @property
    def own_keys(self) -> list[str]:
        """The section's own keys, which are not settings of the plug-in."""
        return [name for name in type(self).model_fields if name != "use"]

    @classmethod
    def spelled_out(cls, value: Any) -> Any:
        """A name, or a name with its settings."""
        if isinstance(value, dict) and len(value) == 1 and not set(value) & set(cls.model_fields):
            ((name, settings),) = value.items()
            if settings is None or isinstance(settings, dict):
                return {**(settings or {}), "use": name}
            if cls.model_fields["use"].is_required():
                raise ValueError(f"the settings of {name} must be keys and values, {{{name}: {{key: value}}}}")
        return alone(value, "use")


class WithPlugIn(PlugIn):
    """A section that has its own keys and also names a plug-in. Built-ins have no other settings: other keys are errors
    unless the plug-in is user code.

    Attributes:
        kind: the kind of plug-in, by its name in `agentrl.registry.kinds`.
        with_settings: built-ins that have some.
    """

    kind: ClassVar[str]
    with_settings: ClassVar[tuple[str, ...]] = ()

    @model_validator(mode="after")
    def _knows_its_keys(self) -> Self:
        if self.model_extra and not is_foreign(self.use, self.kind) and self.use not in self.with_settings:
            raise PydanticCustomError("unknown_key", "unknown key '{key}'", {"key": next(iter(self.model_extra))})
        return self


def alone(value: Any, key: str) -> Any:
    """A string becomes `{key: string}`; any other value is unchanged."""
    return {key: value} if isinstance(value, str) else value


def misplaced(key: str, message: str, value: Any, remedy: str | None = None) -> ValidationError:
    """Returns the error for a setting that conflicts with another one, for validators of the whole recipe.

    Args:
        key: the dotted key of the setting, which becomes the location of the error; "": the section itself.
        message: description of the conflict.
    """
    why = PydanticCustomError("misplaced", "{message}", {"remedy": remedy, "message": message})
    where = tuple(int(part) if part.isdigit() else part for part in key.split(".") if part)
    return ValidationError.from_exception_data("recipe", [{"type": why, "loc": where, "input": value}])


def section_at(root: type[BaseModel], path: Sequence[str | int]) -> type[BaseModel] | None:
    """Returns the section at a path of keys and indices, or None."""
    at: Any = [root, *(at for _, at in _way(root, path))][-1]
    return at if _is_section(at) else None


def may_change(root: type[BaseModel], path: Sequence[str | int]) -> bool:
    """Returns True if the setting at a path, or a section that contains it, is marked with `MAY_CHANGE`."""
    return any(field is not None and MAY_CHANGE in field.metadata for field, _ in _way(root, path))


EVERY = None
"""Stands for all keys of a mapping, or all items of a list, in a path of `with_changed`."""


def with_changed(part: Any, path: Sequence[str | None], change: Callable[[Any, tuple[str, ...]], Any]) -> Any:
    """Returns a copy of a part of a recipe, with a function applied to the value at a path; what does not exist, or is
    null, stays as it is.

    Args:
        path: keys and indices; `EVERY` stands for all.
        change: gets the value and its path, and returns the new value.
    """

    def at(part: Any, done: tuple[str, ...], rest: Sequence[str | None]) -> Any:
        if part is None or not rest:
            return part if part is None else change(part, done)
        key, *below = rest
        if isinstance(part, BaseModel) and key is not EVERY:
            changed = at(getattr(part, key), (*done, key), below)
            return part if changed is getattr(part, key) else part.model_copy(update={key: changed})
        named = {str(name): name for name in (part if isinstance(part, Mapping) else range(len(part)))}
        copied = copy.copy(part)
        for name in named if key is EVERY else [key]:
            copied[named[name]] = at(part[named[name]], (*done, name), below)
        return copied

    return at(part, (), path)


def _way(root: type[BaseModel], path: Sequence[str | int]) -> Iterator[tuple[FieldInfo | None, Any]]:
    """For each part of the path: its field (None for an index or a key of a mapping), and its type."""
    at: Any = root
    for part in path:
        field = at.model_fields.get(str(part)) if _is_section(at) else None
        at = _essence(field.annotation if field is not None else _element(at))
        yield field, at


def _essence(annotation: Any) -> Any:
    """Returns the section (or the list or mapping of sections) among the types of a setting, or None."""
    if typing.get_origin(annotation) in (Union, UnionType, typing.Annotated):
        return next((found for each in typing.get_args(annotation) if (found := _essence(each)) is not None), None)
    return annotation if _is_section(annotation) or _element(annotation) is not None else None


def _element(annotation: Any) -> Any:
    """The element type of a list or a mapping; None for other types."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    return {list: arguments[:1], dict: arguments[1:]}.get(origin, (None,))[0]


def _is_section(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, BaseModel)
