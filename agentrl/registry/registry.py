"""One rule for every plug-in: a name, `pkg.mod:Name`, `./file.py:Name`, or `{use: any of these, setting: value, ...}`.

A name is that of a built-in, or of a plug-in that an installed package offers (`agentrl.registry.installed`).
A registry holds both by reference only: a plug-in that the recipe does not name is never imported.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from pydantic import BaseModel

from agentrl.registry.contract import misfit
from agentrl.registry.installed import Offered, folders_of, offered, offers
from agentrl.registry.references import is_reference, load_object, resolve_references, what_it_is, wrong_kind
from agentrl.registry.settings import Declared, checked, declared
from agentrl.types.errors import AgentRLError, RecipeError, is_user_code, nearest

T = TypeVar("T")


class PlugInSection(Protocol):
    """A section of a recipe that names a plug-in: `agentrl.config.sections.PlugIn`."""

    @property
    def use(self) -> Any:
        """Name or reference of the plug-in."""
        ...

    @property
    def settings(self) -> dict[str, Any]:
        """The plug-in's own."""
        ...

    @property
    def own_keys(self) -> list[str]:
        """Keys next to `use` that are not its settings."""
        ...


@dataclass(frozen=True)
class Loaded(Generic[T]):
    """A plug-in with its checked settings.

    Attributes:
        name: as the recipe names it.
        arguments: the settings as keyword arguments.
        wants: its parameters that the framework fills by name.
    """

    name: str
    plug_in: T
    settings: BaseModel
    arguments: Mapping[str, Any]
    wants: tuple[str, ...] = ()

    def make(self, *leading: Any, **filled: Any) -> Any:
        """Calls the function, or creates an object of the class.

        Args:
            filled: values of the parameters that the framework fills by name; only those in `wants` are passed.
        """
        return self.plug_in(*leading, **{name: filled[name] for name in self.wants}, **self.arguments)  # type: ignore[operator]


@dataclass(frozen=True)
class Registry(Generic[T]):
    """The plug-ins of one kind.

    Attributes:
        kind: singular name of the kind: `estimator`.
        key: key of the recipe that names a plug-in: `credit`.
        built_in: references by name: `agentrl.x.y:Name`.
        wanted: description of a plug-in of this kind: `an Agent subclass`.
        accept: converts an object to a plug-in; returns None if it is not of this kind.
        contracts: protocols, and base classes whose methods their subclasses must have.
        leading: positional arguments of the function or constructor, before its settings.
        filled: parameters that the framework fills by name if the plug-in has them; not settings.
        declares: returns its settings, if they are not those of its function or constructor.
        aliases: other names of built-ins.
        also: words that a recipe may write instead of a name and that other code handles; for messages.
        about: further facts for `agentrl list`; `does` and `code` (a reference) replace its docstring and location.
        group: its key in `agentrl.registry.kinds.KINDS`, by which packages offer such plug-ins; "": none can.
    """

    kind: str
    key: str
    built_in: Mapping[str, str]
    wanted: str
    accept: Callable[[Any], T | None]
    contracts: Sequence[type] = ()
    leading: Sequence[str] = ()
    filled: Collection[str] = ()
    declares: Callable[[T], Declared] | None = None
    aliases: Mapping[str, str] = field(default_factory=dict)
    also: Sequence[str] = ()
    about: Callable[[T], Mapping[str, Any]] | None = None
    group: str = ""

    def find(self, use: Any, base: Path | None = None, place: str | None = None) -> T:
        """Returns the plug-in that a recipe names.

        Args:
            use: a name, a reference, or (from Python) the object itself.
            base: folder that `./file.py` is relative to: that of the recipe.
            place: the key that names it, if not the key of the kind.

        Raises:
            RecipeError: the name is unknown or offered twice, the reference cannot be loaded, or the object is not of
                this kind.
        """
        place, base = place or self.key, base or Path()
        if not isinstance(use, str) or is_reference(use):
            return self._checked(use, use if isinstance(use, str) else None, base, place)
        built_in = self.built_in.get(self.aliases.get(use, use))
        own = offered(use, self.group, self.kind, built_in, place) if self.group else None
        if own is not None:
            return self._of_package(own, base, place)
        if built_in is None:
            known = [*self.also, *self.built_in, *(each.name for each in self.offers())]
            remedy = nearest(use, known, "name your own as ./file.py:Name, or take one of")
            raise RecipeError(f"there is no {self.kind} {use!r}", place=place, remedy=remedy)
        return self._checked(use, built_in, base, place)

    def offers(self) -> list[Offered]:
        """Returns what installed packages offer of this kind."""
        return offers(self.group) if self.group else []

    def _of_package(self, own: Offered, base: Path, place: str) -> T:
        if not is_reference(own.value):
            raise own.broken(f"{own.value!r} names no object", place, "write package.module:Name in its pyproject.toml")
        for code in folders_of(own.value.partition(":")[0]):
            is_user_code(code)
        try:
            return self._checked(own.name, own.value, base, place)
        except AgentRLError as error:
            raise own.broken(error.message, place, error.remedy) from error

    def _checked(self, use: Any, reference: str | None, base: Path, place: str) -> T:
        """Loads the object of a reference, or takes `use` itself, and checks that it is of this kind."""
        found = use if reference is None else load_object(reference, base)
        try:
            plug_in = self.accept(found)
        except TypeError as error:
            raise RecipeError(f"{name_of(use)} {error}", place=place, remedy=f"what is wanted: {self.wanted}") from None
        if plug_in is None:
            if reference is not None:
                raise wrong_kind(reference, base, place, self.wanted, self._fits)
            raise RecipeError(f"{use!r} is {what_it_is(use)}, not {self.wanted}", place=place)
        for contract in self.contracts:
            if isinstance(plug_in, type) and (why := misfit(plug_in, contract)):
                raise RecipeError(f"{name_of(use)} {why}", place=place, remedy=f"what is wanted: {self.wanted}")
        return plug_in

    def _who_has(self, key: str) -> list[str]:
        """Returns the built-ins with a setting of this name, except those that cannot be imported here."""
        found = []
        for name in self.built_in:
            with suppress(AgentRLError):
                if key in self.settings_of(self.find(name), name).model.model_fields:
                    found.append(name)
        return found

    def _fits(self, found: Any) -> bool:
        try:
            return self.accept(found) is not None
        except TypeError:
            return False

    def all(self) -> dict[str, T]:
        """The built-ins by name, in the order of the table. Imports all of them."""
        return {name: self.find(name) for name in self.built_in}

    def load(
        self,
        use: Any,
        settings: Mapping[str, Any],
        base: Path | None = None,
        place: str | None = None,
        beside: Collection[str] = (),
    ) -> Loaded[T]:
        """Loads the plug-in that a recipe names, and checks its settings.

        Args:
            settings: references in them (`./file.py:Name`, `./path`) are resolved, unless declared `as_written`.
            beside: other keys of the section, suggested for misspelt settings.

        Raises:
            RecipeError: as `find`, or a setting is unknown, missing or invalid.
        """
        place, base, name = place or self.key, base or Path(), name_of(use)
        plug_in = self.find(use, base, place)
        declares = self.settings_of(plug_in, name, place)
        given = dict(settings) if declares.as_written else resolve_references(dict(settings), base)
        own = checked(declares.model, given, name, place, filled=self.filled, beside=beside, who_has=self._who_has)
        return Loaded(name, plug_in, own, declares.arguments(own), declares.wants)

    def chosen(self, section: PlugInSection, base: Path | None = None, place: str | None = None) -> Loaded[T]:
        """The plug-in that a section of a recipe names, with its settings.

        Raises:
            RecipeError: as `load`.
        """
        return self.load(section.use, section.settings, base, place, section.own_keys)

    def settings_of(self, plug_in: T, name: str, place: str | None = None) -> Declared:
        """Returns the settings that a plug-in declares.

        Raises:
            RecipeError: its signature does not fit its kind.
        """
        try:
            if self.declares is not None:
                return self.declares(plug_in)
            return declared(plug_in, self.leading, self.filled)
        except (TypeError, ValueError) as error:
            remedy = f"what is wanted: {self.wanted}"
            raise RecipeError(f"{name} {error}", place=place or self.key, remedy=remedy) from None


def subclass_of(base: type[T]) -> Callable[[Any], type[T] | None]:
    """Accepts the subclasses of a class, and not the class itself."""

    def accept(found: Any) -> type[T] | None:
        return found if isinstance(found, type) and issubclass(found, base) and found is not base else None

    return accept


def any_class(found: Any) -> type | None:
    """Accepts every class: its methods are compared with the contract."""
    return found if isinstance(found, type) else None


def any_function(found: Any) -> Callable[..., Any] | None:
    """Accepts callables other than classes."""
    return found if callable(found) and not inspect.isclass(found) else None


def name_of(use: Any) -> str:
    """Returns the name of a plug-in for messages."""
    return use if isinstance(use, str) else getattr(use, "__name__", None) or getattr(use, "name", None) or str(use)
