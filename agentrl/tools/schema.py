"""Tools that are given as a JSON schema: what MCP servers, OpenAPI descriptions and function-calling sets have."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.types import values
from agentrl.types.errors import RecipeError

_Known = dict[tuple[int, int, str], list[str | None]]
"""First complaints of the options of `anyOf` and `oneOf`, by schema, value and place: they are met on many ways."""

_DEPTH = 32
"""Levels to which arguments are checked: a schema may refer to itself."""


@dataclass(frozen=True)
class SchemaTool:
    """A tool whose arguments a JSON schema describes. `tool.from_schema` makes one.

    Attributes:
        schema: of the arguments, an object.
        call: takes the arguments as one dict; may be synchronous, and then runs in a thread.
    """

    name: str
    description: str
    schema: dict[str, Any]
    call: Callable[[dict[str, Any]], Any]
    __agentrl_tool__ = True

    @property
    def function(self) -> Callable[..., Any]:
        """`call` with the arguments as keywords."""
        call = self.call

        async def run_async(**arguments: Any) -> Any:
            return await call(arguments)

        def run(**arguments: Any) -> Any:
            return call(arguments)

        found: Callable[..., Any] = run_async if inspect.iscoroutinefunction(call) else run
        found.__agentrl_call__ = call  # type: ignore[attr-defined]
        return found


def schema_tool(
    name: str, description: str, schema: Mapping[str, Any] | None, call: Callable[[dict[str, Any]], Any]
) -> SchemaTool:
    """A tool with a checked schema.

    Raises:
        RecipeError: the name is empty, or the schema is not that of an object.
    """
    place = f"tool {name!r}"
    if not isinstance(name, str) or not name.strip():
        raise RecipeError("a tool has no name", place=place, remedy="give the name by which the model calls it")
    try:
        plain = values.plain(dict(schema or {}))
    except (values.ValueRefused, TypeError, ValueError) as error:
        raise RecipeError(f"its schema is no JSON: {error}", place=place) from None
    properties = plain.setdefault("properties", {})
    kind = plain.setdefault("type", "object")
    if kind != "object" or not isinstance(properties, dict):
        raise RecipeError(
            f"its schema describes {json.dumps(kind)}, not an object with properties",
            place=place,
            remedy='{"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}',
        )
    return SchemaTool(name, values.text(description), plain, call)


def defined_tool(definition: Mapping[str, Any], call: Callable[[dict[str, Any]], Any]) -> SchemaTool:
    """A tool from a definition as APIs take it, with or without `{"type": "function", "function": ...}` around it.

    Raises:
        RecipeError: it has no name, or a schema that is not that of an object.
    """
    function = inner_definition(definition)
    return schema_tool(function.get("name", ""), function.get("description") or "", function.get("parameters"), call)


def inner_definition(definition: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a definition that has the name."""
    inner = definition.get("function")
    return inner if isinstance(inner, Mapping) else definition


def complaint(schema: Mapping[str, Any], value: Any) -> str | None:
    """The first thing in which arguments do not fit their schema, in words for a model; None if they fit.

    Keywords that are not known here are passed over: the tool itself may still refuse.
    """
    return next(_complaints(schema, schema, value, "", _DEPTH, {}), None)


def _complaints(
    root: Mapping[str, Any], schema: Any, value: Any, path: str, depth: int, known: _Known
) -> Iterator[str]:
    if not isinstance(schema, Mapping) or not depth:
        return
    if (target := _referred(root, schema)) is not None:
        yield from _complaints(root, target, value, path, depth - 1, known)
        return
    for keyword in ("anyOf", "oneOf"):
        options = schema.get(keyword)
        if isinstance(options, Sequence) and options:
            if (at := (id(options), id(value), path)) not in known:
                each = (next(_complaints(root, option, value, path, depth - 1, known), None) for option in options)
                known[at] = list(each)
            if None not in known[at]:
                yield known[at][0] or ""
    if (wrong := _of_type(schema.get("type"), value)) is not None:
        yield f"{_at(path)}{wrong}"
        return
    for keyword in schema:
        if (check := _CHECKS.get(keyword)) is not None and (wrong := check(schema[keyword], value)) is not None:
            yield f"{_at(path)}{wrong}"
    if isinstance(value, dict):
        yield from _of_object(root, schema, value, path, depth, known)
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _complaints(root, schema.get("items"), item, f"{path}.{index}", depth - 1, known)


def _of_object(
    root: Mapping[str, Any], schema: Mapping[str, Any], value: dict[str, Any], path: str, depth: int, known: _Known
) -> Iterator[str]:
    properties = schema.get("properties") or {}
    for name in schema.get("required") or ():
        if name not in value:
            yield f"argument {f'{path}.{name}'.lstrip('.')!r}: field required"
    closed = schema.get("additionalProperties", path != "") is False  # of the arguments themselves unless allowed
    for name, item in value.items():
        if name in properties:
            yield from _complaints(root, properties[name], item, f"{path}.{name}", depth - 1, known)
        elif closed:
            yield f"unknown argument {f'{path}.{name}'.lstrip('.')!r}; allowed: {sorted(properties)}"


def _referred(root: Mapping[str, Any], schema: Mapping[str, Any]) -> Any:
    """What a `$ref` within the schema leads to; None without one."""
    reference = schema.get("$ref")
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return None
    target: Any = root
    for key in reference[2:].split("/"):
        target = target.get(key) if isinstance(target, Mapping) else None
    return target


def _at(path: str) -> str:
    return f"argument {path.lstrip('.')!r}: " if path else ""


_TYPES: dict[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: not isinstance(value, bool) and _whole(value),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "boolean": lambda value: isinstance(value, bool),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
    "null": lambda value: value is None,
}


def _of_type(kinds: Any, value: Any) -> str | None:
    """Types that JSON schema does not know (`float`, `dict`) let everything pass."""
    names = kinds if isinstance(kinds, list) else [kinds]
    if any(name not in _TYPES or _TYPES[name](value) for name in names):
        return None
    return f"should be {' or '.join(map(str, names))}"


def _whole(value: Any) -> bool:
    return isinstance(value, int) or (isinstance(value, float) and value.is_integer())


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_CHECKS: dict[str, Callable[[Any, Any], str | None]] = {
    "enum": lambda allowed, value: None if value in allowed else f"should be one of {json.dumps(allowed)}",
    "const": lambda allowed, value: None if value == allowed else f"should be {json.dumps(allowed)}",
    "minimum": lambda low, value: f"should be at least {low}" if _number(value) and value < low else None,
    "maximum": lambda high, value: f"should be at most {high}" if _number(value) and value > high else None,
    "exclusiveMinimum": lambda low, value: (
        f"should be above {low}" if _number(value) and _number(low) and value <= low else None
    ),
    "exclusiveMaximum": lambda high, value: (
        f"should be below {high}" if _number(value) and _number(high) and value >= high else None
    ),
    "minItems": lambda low, value: (
        f"should have at least {low} items" if isinstance(value, list) and len(value) < low else None
    ),
    "maxItems": lambda high, value: (
        f"should have at most {high} items" if isinstance(value, list) and len(value) > high else None
    ),
}
