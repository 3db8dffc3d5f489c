"""Listing of the plug-ins of a kind: names, settings with types and defaults, source locations."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from agentrl.registry.registry import Registry
from agentrl.types.errors import AgentRLError


@dataclass(frozen=True)
class ListedSetting:
    """One setting of a plug-in. `default` is None, and `required` true, where it has to be given."""

    name: str
    type: str
    default: Any
    required: bool
    description: str | None


@dataclass(frozen=True)
class Entry:
    """A plug-in: built in, or of an installed package.

    Attributes:
        source: `file:line`.
        does: the first sentence of its docstring.
        about: further facts, by the rules of its kind.
        missing: the reason why it cannot be used here, for example an extra that is not installed.
        package: the package that offers it, with its version; None: it is built in.
    """

    name: str
    source: str
    does: str = ""
    settings: list[ListedSetting] = field(default_factory=list)
    about: Mapping[str, Any] = field(default_factory=dict)
    missing: str | None = None
    package: str | None = None


def entries(registry: Registry[Any]) -> list[Entry]:
    """The plug-ins of a kind: the built-ins in the order of its table, then what installed packages offer."""
    built_in = [_entry(registry, name, code) for name, code in registry.built_in.items()]
    return [*built_in, *(_entry(registry, each.name, each.value, each.package) for each in registry.offers())]


def _entry(registry: Registry[Any], name: str, code: str, package: str | None = None) -> Entry:
    try:
        plug_in = registry.find(name)
        settings = registry.settings_of(plug_in, name).model.model_fields
        about = {} if registry.about is None else dict(registry.about(plug_in))
    except AgentRLError as error:
        return Entry(name, source_of(code) if package is None else code, missing=str(error), package=package)
    code = about.pop("code", code)
    does = about.pop("does", None) or " ".join((inspect.getdoc(plug_in) or "").split("\n\n")[0].split())
    shown = [_setting(key, each) for key, each in settings.items()]
    return Entry(name, source_of(code), does, shown, about, package=package)


def _setting(name: str, each: FieldInfo) -> ListedSetting:
    required = each.is_required()
    default = None if required else each.get_default(call_default_factory=True)
    return ListedSetting(name, _type(each.annotation), default, required, each.description)


def _type(hint: Any) -> str:
    plain = _without_bounds(hint)
    return re.sub(r"\b(?:typing|collections\.abc|agentrl(?:\.\w+)*)\.", "", inspect.formatannotation(plain))


def _without_bounds(hint: Any) -> Any:
    """Returns a type without the bounds of `Annotated[int, Field(ge=1)]`, alone or in a union."""
    if get_origin(hint) is Annotated:
        return get_args(hint)[0]
    if get_origin(hint) is Union and any(get_origin(each) is Annotated for each in get_args(hint)):
        return functools.reduce(operator.or_, map(_without_bounds, get_args(hint)))
    return hint


def source_of(reference: str) -> str:
    """Returns `file:line` of a reference, found in the source text: only its package is imported."""
    module, _, name = reference.partition(":")
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        return module
    first = re.escape(name.partition(".")[0])
    defined = re.compile(rf"^(?:(?:async )?def|class) {first}\b|^{first}\b *[:=]", re.MULTILINE)
    text = Path(spec.origin).read_text()
    found = defined.search(text)
    return f"{spec.origin}:{text.count(chr(10), 0, found.start()) + 1}" if found is not None else spec.origin
