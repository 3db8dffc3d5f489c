"""JSON schemas of arguments: one implementation for parsers (types of texts), validation of calls, and prompts.

Schemas come from outside (MCP servers, OpenAPI descriptions, rows of data sets): their form is not trusted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote

Schema = Any
"""A mapping, or true or false. Anything else accepts every value."""

_DEPTH = 32
"""Maximum depth of checked values and followed schemas: a schema may refer to itself."""


def complaint(schema: Mapping[str, Any], arguments: Any) -> str | None:
    """Describes the first mismatch between arguments and their schema, in words for a model; None if they fit.

    Unknown keywords are ignored: the tool itself may still refuse. Arguments that the schema does not name are refused
    unless it allows them; a schema that names none allows all.
    """
    return _Check(schema).first(schema, arguments, (), _DEPTH) or _surplus(schema, arguments)


def arguments(schema: Any) -> dict[str, Schema]:
    """Returns the arguments that a schema names, itself or by `$ref`, `allOf`, `anyOf`, `oneOf` and the like, each with
    its schema.
    """
    if not isinstance(schema, Mapping):
        return {}
    own = schema.get("properties")
    if not _COMBINING.keys() & schema.keys() and "$ref" not in schema:
        return dict(own) if isinstance(own, Mapping) else {}
    names = dict.fromkeys(name for part in _parts(schema, schema) for name in _mapping(part, "properties"))
    return {name: _of_argument(schema, schema, name, {}) for name in names}


def names_arguments(schema: Mapping[str, Any]) -> bool:
    """Returns True if a schema restricts names: `{"type": "object"}` allows any arguments."""
    return any(_NAMING & part.keys() for part in _parts(schema, schema))


def required(schema: Any) -> list[str]:
    """Returns the arguments that are required independently of the others."""
    if not isinstance(schema, Mapping):
        return []
    parts = _parts(schema, schema, ("allOf",))
    named = [name for part in parts if isinstance(part.get("required"), list) for name in part["required"]]
    return list(dict.fromkeys(name for name in named if isinstance(name, str)))


class Argument(NamedTuple):
    """One argument of a tool.

    Attributes:
        root: schema of all arguments, the base of references.
        schema: of this one.
    """

    root: Mapping[str, Any]
    schema: Schema

    def fits(self, value: Any) -> bool:
        """Returns True if the schema allows a value."""
        return _Check(self.root).first(self.schema, value, ("",), _DEPTH) is None

    @property
    def takes_text(self) -> bool:
        """True if the schema explicitly allows text: any, or one of some."""
        return not self._takes_all and (self.fits(_SOME_TEXT) or any(isinstance(v, str) for v in self._listed))

    def value(self, text: str, read: Callable[[str], Any], *, is_text: bool | None = None) -> Any:
        """Converts a bare text: to itself if that fits, else its JSON, or a word for a constant of Python.

        `null` becomes null if both null and any text are allowed. A text that does not fit at all becomes its JSON or
        stays: the tool refuses it in words.

        Args:
            read: reads JSON; raises ValueError.
            is_text: the caller's hint: it is a text, or is not; None: no hint.
        """
        word = text.strip()

        def other() -> list[Any]:
            try:
                return [read(text)]
            except ValueError:
                return []

        hinted = [] if is_text is None else [text] if is_text else other()
        if any(map(self.fits, hinted)):
            return hinted[0]
        if self._takes_all:
            return (other() or [text])[0]
        if self.fits(text):
            empty = word in ("null", "None") and self.fits(None) and self.fits(_SOME_TEXT)
            return None if empty else text
        if word in _WORDS and self.fits(_WORDS[word]):
            return _WORDS[word]
        found = other()
        return found[0] if found and (self.fits(found[0]) or not self.takes_text) else text

    @property
    def type_name(self) -> str:
        """Type in a word or two for a prompt; null is left out."""
        names = dict.fromkeys(name for part in _parts(self.root, self.schema) for name in _told(part))
        return "|".join(names) or "any"

    @property
    def merged(self) -> dict[str, Any]:
        """One schema without parts: the first value of each keyword. Its type is one name other than null."""
        parts = list(_parts(self.root, self.schema))
        names = [name for part in parts for name in _names(part) if name != "null"]
        said = {key: value for part in reversed(parts) for key, value in part.items()}
        return {**said, "type": names[0]} if names else {key: said[key] for key in said if key != "type"}

    @property
    def description(self) -> str:
        """Description of the argument; "" if none."""
        said = self.merged.get("description")
        return said if isinstance(said, str) else ""

    @property
    def placeholder(self) -> Any:
        """Example value, preferably one that its bare text converts to."""
        found = [value for part in _parts(self.root, self.schema) for value in _examples(part) if value is not None]
        fitting = [value for value in found if self.fits(value)]
        return next(filter(self._is_read_back, fitting), (fitting or found or ["..."])[0])

    def _is_read_back(self, value: Any) -> bool:
        return _same(self.value(value if isinstance(value, str) else json.dumps(value), json.loads), value)

    @property
    def _takes_all(self) -> bool:
        """True if the schema does not restrict the type."""
        return all(map(self.fits, _OF_MANY_TYPES))

    @property
    def _listed(self) -> Iterator[Any]:
        for part in _parts(self.root, self.schema):
            yield from part["enum"] if isinstance(part.get("enum"), list) else ()
            yield from [part["const"]] if "const" in part else ()


_SOME_TEXT = "\ue000"
_OF_MANY_TYPES: tuple[Any, ...] = (_SOME_TEXT, True, [], {})
_WORDS: dict[str, Any] = {"True": True, "False": False, "None": None}
"""Constants as written by templates that print a value in Jinja (Qwen3.5's, Nemotron 3's), and by their models."""

_COMBINING: dict[str, bool] = {
    "allOf": True, "anyOf": True, "oneOf": True, "then": False, "else": False, "dependentSchemas": True,
}  # fmt: skip
"""Keywords that hold further schemas of the same value, and whether they hold several."""


def _parts(root: Any, schema: Schema, keywords: Sequence[str] = tuple(_COMBINING)) -> Iterator[Any]:
    """Yields a schema, its references and the schemas that it combines, each once."""
    seen: set[int] = set()
    waiting = [schema]
    while waiting and len(seen) < 1000:
        part = waiting.pop(0)
        if not isinstance(part, Mapping) or id(part) in seen:
            continue
        seen.add(id(part))
        yield part
        waiting += [target for target in (_referred(root, part),) if target is not None]
        waiting += [inner for keyword in keywords for inner in _combined(part, keyword)]


def _combined(schema: Mapping[str, Any], keyword: str) -> list[Schema]:
    held = schema.get(keyword)
    if not _COMBINING[keyword]:
        return [] if held is None else [held]
    if isinstance(held, Mapping):
        return list(held.values())
    return list(held) if isinstance(held, list | tuple) else []


def _of_argument(root: Any, schema: Schema, name: str, known: dict[int, Schema]) -> Schema:
    """Returns the schema of an argument; None if it is not named. `known`: results by schema, for recursion."""
    if not isinstance(schema, Mapping):
        return None
    if id(schema) not in known:
        known[id(schema)] = None  # ends the recursion of a schema that refers to itself
        own = _mapping(schema, "properties")
        found = [own[name]] if name in own else []
        for every in (_referred(root, schema), *_combined(schema, "allOf")):
            found += [each for each in (_of_argument(root, every, name, known),) if each is not None]
        for keyword in _COMBINING.keys() - {"allOf"}:
            options = [_of_argument(root, option, name, known) for option in _combined(schema, keyword)]
            said = [option for option in options if option is not None]
            found += [{"anyOf": said}] if len(said) > 1 else said
        known[id(schema)] = None if not found else found[0] if len(found) == 1 else {"allOf": found}
    return known[id(schema)]


def _surplus(schema: Mapping[str, Any], given: Any) -> str | None:
    """Describes the first argument that a schema does not name, unless it allows more."""
    if not isinstance(given, dict) or not isinstance(schema, Mapping):
        return None
    parts = list(_parts(schema, schema))
    if not names_arguments(schema) or any(_lets_more(schema, part) for part in parts):
        return None
    named, patterns = arguments(schema), [p for part in parts for p in _mapping(part, "patternProperties")]
    for name in given:
        if name not in named and not any(_matches(pattern, name) for pattern in patterns):
            return _unknown(name, (), named)
    return None


_NAMING = {"properties", "patternProperties", "additionalProperties", "unevaluatedProperties"}


def _lets_more(root: Any, schema: Mapping[str, Any]) -> bool:
    """Returns True if a schema allows further arguments, or has a reference that cannot be resolved."""
    more = schema.get("additionalProperties", schema.get("unevaluatedProperties"))
    return more not in (None, False) or ("$ref" in schema and _referred(root, schema) is None)


class _Check:
    """Check of one value. Every schema is applied to every part of the value once.

    Args:
        root: base of references.
    """

    def __init__(self, root: Any) -> None:
        self._root = root
        self._known: dict[tuple[int, tuple[str, ...]], str | None] = {}

    def first(self, schema: Schema, value: Any, path: tuple[str, ...], depth: int) -> str | None:
        """Returns the first complaint."""
        if schema is False:
            return f"{_at(path)}nothing is allowed here"
        if not isinstance(schema, Mapping) or not depth:
            return None
        key = id(schema), path
        if key not in self._known:
            self._known[key] = None  # ends the recursion of a schema that refers to itself at the same place
            self._known[key] = self._find(schema, value, path, depth)
        return self._known[key]

    def _find(self, schema: Mapping[str, Any], value: Any, path: tuple[str, ...], depth: int) -> str | None:
        for every in (_referred(self._root, schema), *_combined(schema, "allOf")):
            if (wrong := self.first(every, value, path, depth - 1)) is not None:
                return wrong
        for keyword in ("anyOf", "oneOf"):
            wrongs = [self.first(option, value, path, depth - 1) for option in _combined(schema, keyword)]
            if wrongs and None not in wrongs:
                return _of_options([wrong for wrong in wrongs if wrong is not None], f"{_at(path)}should be ")
        if (wrong := _of_type(schema, value)) is not None:
            return _at(path) + wrong
        for keyword, held in schema.items():
            check = _CHECKS.get(keyword)
            if check is not None and (wrong := check(held, value)) is not None:
                return _at(path) + wrong
        if isinstance(value, dict):
            return self._of_object(schema, value, path, depth)
        return self._of_list(schema, value, path, depth) if isinstance(value, list) else None

    def _of_object(
        self, schema: Mapping[str, Any], value: dict[str, Any], path: tuple[str, ...], depth: int
    ) -> str | None:
        needed = schema.get("required")
        for name in needed if isinstance(needed, list) else ():
            if isinstance(name, str) and name not in value:
                return f"argument {_dotted((*path, name))!r}: field required"
        properties, patterns = _mapping(schema, "properties"), _mapping(schema, "patternProperties")
        more = schema.get("additionalProperties")
        for name, item in value.items():
            matching = [held for pattern, held in patterns.items() if _matches(pattern, name)]
            said = [properties[name], *matching] if name in properties else matching
            if not said and more is False:
                return _unknown(name, path, properties)
            for each in said or [more]:
                if (wrong := self.first(each, item, (*path, name), depth - 1)) is not None:
                    return wrong
        return None

    def _of_list(self, schema: Mapping[str, Any], value: list[Any], path: tuple[str, ...], depth: int) -> str | None:
        items = schema.get("items")
        first = schema.get("prefixItems", items)  # until draft 2019 a list of them was called `items`
        each = list(first) if isinstance(first, list) else []
        rest = schema.get("additionalItems") if isinstance(items, list) else items
        for index, item in enumerate(value):
            held = each[index] if index < len(each) else rest
            if (wrong := self.first(held, item, (*path, str(index)), depth - 1)) is not None:
                return wrong
        return None


def _of_options(wrongs: list[str], begin: str) -> str:
    """Returns one complaint for all options: the first, with the types of the others if all are about types."""
    if not all(wrong.startswith(begin) for wrong in wrongs):
        return wrongs[0]
    return begin + " or ".join(dict.fromkeys(wrong.removeprefix(begin) for wrong in wrongs))


def _referred(root: Any, schema: Mapping[str, Any]) -> Schema:
    """Resolves a `$ref` within the schema; None without one, or if it leads outside."""
    reference = schema.get("$ref")
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    target = root
    for key in unquote(reference).removeprefix("#").removeprefix("/").split("/") if len(reference) > 1 else ():
        key = key.replace("~1", "/").replace("~0", "~")
        if isinstance(target, Mapping):
            target = target.get(key)
        elif isinstance(target, list) and key.isdecimal() and int(key[:9]) < len(target):
            target = target[int(key)]
        else:
            return None
    return target


def _mapping(schema: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    held = schema.get(key)
    return held if isinstance(held, Mapping) else {}


def _matches(pattern: str, name: str) -> bool:
    """Returns True if a pattern of `patternProperties` matches a name, or if it might run for too long."""
    if len(name) > 100 or len(_UNBOUNDED.findall(pattern)) > 3 or _REPEATED.search(pattern):
        return True
    try:
        return re.search(pattern, name) is not None
    except (re.error, RecursionError, OverflowError):
        return True


_UNBOUNDED = re.compile(r"(?<!\\)(?:[*+]|\{\d*,\d*\})")
_REPEATED = re.compile(r"\)(?:[*+]|\{)")


def _unknown(name: str, path: tuple[str, ...], known: Mapping[str, Any]) -> str:
    return f"unknown argument {_dotted((*path, name))!r}; allowed: {sorted(known)}"


def _dotted(path: tuple[str, ...]) -> str:
    return ".".join(path)


def _at(path: tuple[str, ...]) -> str:
    return f"argument {_dotted(path)!r}: " if path else ""


_TYPES: dict[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: not isinstance(value, bool) and _whole(value),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "boolean": lambda value: isinstance(value, bool),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
    "null": lambda value: value is None,
}


def _of_type(schema: Mapping[str, Any], value: Any) -> str | None:
    """Checks the type. Types unknown to JSON schema (`float`, `dict`) accept everything; `nullable` is OpenAPI's."""
    names = _names(schema)
    if value is None and schema.get("nullable") is True:
        return None
    if not names or any(name not in _TYPES or _TYPES[name](value) for name in names):
        return None
    return f"should be {' or '.join(names)}"


def _names(schema: Mapping[str, Any]) -> list[str]:
    held = schema.get("type")
    return [str(name) for name in held] if isinstance(held, list) else [] if held is None else [str(held)]


def _whole(value: Any) -> bool:
    return isinstance(value, int) or (isinstance(value, float) and value.is_integer())


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _same(a: Any, b: Any) -> bool:
    """Returns True if two values are equal in JSON: true is not 1."""
    if isinstance(a, bool) or isinstance(b, bool) or type(a) is type(b):
        return type(a) is type(b) and bool(a == b)
    return _number(a) and _number(b) and bool(a == b)


def _bound(fits: Callable[[Any, Any], bool], says: str) -> Callable[[Any, Any], str | None]:
    """Makes a check of numbers against a bound. A bound that is not a number (true in draft 4) accepts all."""
    return lambda bound, value: (
        says.format(bound) if _number(value) and _number(bound) and not fits(value, bound) else None
    )


def _size(fits: Callable[[int, Any], bool], says: str) -> Callable[[Any, Any], str | None]:
    return lambda bound, value: (
        says.format(bound) if isinstance(value, list) and _number(bound) and not fits(len(value), bound) else None
    )


_CHECKS: dict[str, Callable[[Any, Any], str | None]] = {
    "enum": lambda allowed, value: (
        f"should be one of {json.dumps(allowed)}"
        if isinstance(allowed, list) and not any(_same(value, each) for each in allowed)
        else None
    ),
    "const": lambda allowed, value: None if _same(value, allowed) else f"should be {json.dumps(allowed)}",
    "minimum": _bound(lambda value, low: value >= low, "should be at least {}"),
    "maximum": _bound(lambda value, high: value <= high, "should be at most {}"),
    "exclusiveMinimum": _bound(lambda value, low: value > low, "should be above {}"),
    "exclusiveMaximum": _bound(lambda value, high: value < high, "should be below {}"),
    "minItems": _size(lambda size, low: size >= low, "should have at least {} items"),
    "maxItems": _size(lambda size, high: size <= high, "should have at most {} items"),
}


def _told(schema: Mapping[str, Any]) -> list[str]:
    """Returns the types that a schema names directly, or its values if it lists them."""
    if isinstance(schema.get("enum"), list):
        return [json.dumps(value, ensure_ascii=False) for value in schema["enum"]]
    if "const" in schema:
        return [json.dumps(schema["const"], ensure_ascii=False)]
    return [name for name in _names(schema) if name != "null"]


_EXAMPLES: dict[str, Any] = {
    "integer": 1, "number": 1.0, "boolean": True, "array": [], "object": {}, "string": "...",
}  # fmt: skip


def _examples(schema: Mapping[str, Any]) -> list[Any]:
    """Returns example values for a schema, from its own keywords."""
    listed = [*schema["enum"]] if isinstance(schema.get("enum"), list) else []
    listed += [schema["const"]] if "const" in schema else []
    return listed + [_EXAMPLES[name] for name in _names(schema) if name in _EXAMPLES]
