"""Tools defined by a JSON schema, as in MCP servers, OpenAPI descriptions and function-calling data sets."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from agentrl.types import values
from agentrl.types.errors import RecipeError, ToolError
from agentrl.types.parts import schemas
from agentrl.types.parts.schemas import complaint


@dataclass(frozen=True)
class SchemaTool:
    """Tool with arguments described by a JSON schema. Made by `tool.from_schema`.

    Attributes:
        schema: schema of the arguments, an object.
        call: takes the arguments as one dict; a synchronous one runs in a thread.
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
    """Makes a tool and checks its schema.

    Raises:
        RecipeError: the name is empty, or the schema does not describe an object.
    """
    place = f"tool {name!r}"
    if not isinstance(name, str) or not name.strip():
        raise RecipeError("a tool has no name", place=place, remedy="give the name by which the model calls it")
    try:
        plain = values.plain(dict(schema or {}))
    except (values.ValueRefused, TypeError, ValueError) as error:
        raise RecipeError(f"its schema is no JSON: {error}", place=place) from None
    if plain and not schemas.names_arguments(plain):
        plain.setdefault("additionalProperties", True)
    if not plain.get("properties"):
        plain["properties"] = {}  # none at all; PHP writes an empty object as []
    properties = plain["properties"]
    kind = plain.setdefault("type", "object")
    if isinstance(kind, list) and "object" in kind:
        plain["type"] = kind = "object"
    if kind != "object" or not isinstance(properties, dict):
        raise RecipeError(
            f"its schema describes {json.dumps(kind)}, not an object with properties",
            place=place,
            remedy='{"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}',
        )
    return SchemaTool(name, values.text(description), plain, call)


def defined_tool(definition: Mapping[str, Any], call: Callable[[dict[str, Any]], Any]) -> SchemaTool:
    """Makes a tool from an API definition, with or without the `{"type": "function", "function": ...}` wrapper.

    Raises:
        RecipeError: the name is missing, or the schema does not describe an object.
    """
    function = inner_definition(definition)
    return schema_tool(function.get("name", ""), function.get("description") or "", function.get("parameters"), call)


def fitting(schema: Mapping[str, Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments if they fit a schema.

    Raises:
        ToolError: they do not fit; the message is for the model.
    """
    if (wrong := complaint(schema, arguments)) is not None:
        raise ToolError(wrong)
    return arguments


def inner_definition(definition: Mapping[str, Any]) -> Mapping[str, Any]:
    """Unwraps `{"type": "function", "function": ...}`; returns the part with the name."""
    inner = definition.get("function")
    return inner if isinstance(inner, Mapping) else definition
