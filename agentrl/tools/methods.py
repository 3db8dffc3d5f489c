"""Methods of tools, their JSON schemas, and the check of arguments."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import msgspec
from pydantic import Field, TypeAdapter, ValidationError, create_model
from pydantic.fields import FieldInfo

from agentrl.tools.base import Environment, FunctionTool, Tool, ToolResult, name_of, own_methods
from agentrl.tools.calling import called
from agentrl.tools.schema import SchemaTool, fitting
from agentrl.types.clocks.threads import in_thread
from agentrl.types.errors import RecipeError, ToolError
from agentrl.types.forms import united
from agentrl.types.parts.image import is_pil


@dataclass(frozen=True)
class ToolMethod:
    """One tool that the model can call.

    Attributes:
        name: tool name in the prompt and in calls.
        owner: tool instance of the method.
        schema: JSON schema of the arguments (an object).
        arguments: validator from type hints; None: validation by the schema.
        texts: names of the arguments if all are required plain `str`; else None.
    """

    name: str
    description: str
    schema: dict[str, Any]
    owner: Tool
    function: Callable[..., Any]
    arguments: TypeAdapter[Any] | None = None
    texts: frozenset[str] | None = None

    def definition(self) -> dict[str, Any]:
        """Returns the definition for chat templates and APIs: `{"type": "function", "function": {...}}`."""
        function = {"name": self.name, "description": self.description, "parameters": self.schema}
        return {"type": "function", "function": function}

    async def call(self, arguments: dict[str, Any]) -> ToolResult:
        """Checks the arguments and runs the tool on a copy of them, so that the tool cannot change the originals.

        Raises:
            ToolError: the arguments do not fit the schema; the message is for the model.
        """
        plain = [type(each) is str and each.isascii() for each in arguments.values()]
        if self.texts == arguments.keys() and all(plain):
            checked: Mapping[str, Any] = arguments  # nothing to check, nothing mutable
        else:
            own = msgspec.to_builtins(arguments)
            checked = self._by_schema(own) if self.arguments is None else self._by_hints(own, self.arguments)
        result = await called(self.owner, self.function, **checked)
        if isinstance(result, ToolResult):
            return result
        # Encoding a large picture as PNG takes seconds.
        return await in_thread(lambda: ToolResult(result)) if is_pil(result) else ToolResult(result)

    def _by_hints(self, arguments: dict[str, Any], hints: TypeAdapter[Any]) -> Mapping[str, Any]:
        if unknown := arguments.keys() - self.schema["properties"].keys():
            raise ToolError(f"unknown argument {sorted(unknown)[0]!r}; allowed: {sorted(self.schema['properties'])}")
        try:
            checked: Mapping[str, Any] = vars(hints.validate_python(arguments))
        except ValidationError as error:
            first = next(united(error.errors(), arguments))
            where = ".".join(map(str, first["loc"]))
            message = str(first["msg"])  # its names keep their capitals
            raise ToolError(f"argument {where!r}: {message[:1].lower()}{message[1:]}") from None
        return checked

    def _by_schema(self, arguments: dict[str, Any]) -> Mapping[str, Any]:
        return fitting(self.schema, arguments)

    @property
    def place(self) -> str:
        """Name and source location of the tool, for messages: `tool 'buy' (/shop/task.py:32)`."""
        function = getattr(self.function, "__agentrl_call__", self.function)
        code = getattr(getattr(function, "__func__", function), "__code__", None)
        where = f" ({code.co_filename}:{code.co_firstlineno})" if code is not None else ""
        return f"tool {self.name!r}{where}"


def methods_of(instance: Tool) -> list[ToolMethod]:
    """Returns the tools known before an instance is opened: its `@tool` methods, in order of definition."""
    if isinstance(instance, FunctionTool):
        return [method(instance, instance.function)]
    found = own_methods(instance)
    if not found and type(instance).open is Tool.open and not isinstance(instance, Environment):
        raise RecipeError(  # one that only prepares the sandbox is fine
            f"tool {type(instance).__name__} has no @tool method", remedy="mark its methods with @tool"
        )
    return [method(instance, each) for each in found]


def toolbox(instances: Iterable[Tool]) -> dict[str, ToolMethod]:
    """Returns by name all methods known before tools are opened.

    Raises:
        RecipeError: two tools offer the same name.
    """
    return by_name(method for instance in instances for method in methods_of(instance))


def by_name(methods: Iterable[ToolMethod]) -> dict[str, ToolMethod]:
    """Maps names to methods, in their order.

    Raises:
        RecipeError: two methods have the same name.
    """
    box: dict[str, ToolMethod] = {}
    for method in methods:
        if (other := box.get(method.name)) is not None:
            one, two = _label(other.owner), _label(method.owner)
            whose = f"by both {one} and {two}" if one != two else f"twice by {one}"
            raise RecipeError(
                f"tool name {method.name!r} is offered {whose}",
                remedy="rename one of the methods or drop one of the tools",
            )
        box[method.name] = method
    return box


def _label(instance: Tool) -> str:
    if not isinstance(instance, FunctionTool):
        return type(instance).__name__
    return str(getattr(instance.function, "__qualname__", None) or getattr(instance.function, "name", "a tool"))


# The argument model is shared by all instances, because building it costs more than most tool calls. The weak keys
# release functions that an environment defines in `tools()`.
_Described = tuple[str, dict[str, Any], TypeAdapter[Any], frozenset[str] | None]
_described: WeakKeyDictionary[Callable[..., Any], _Described] = WeakKeyDictionary()


def method(owner: Tool, offered: Any) -> ToolMethod:
    """Makes a `ToolMethod` of a `@tool` method or function, or of a tool from a schema.

    Raises:
        RecipeError: `offered` is of another type, or its arguments cannot be described to a model.
    """
    if isinstance(offered, SchemaTool):
        return ToolMethod(offered.name, offered.description, offered.schema, owner, offered.function)
    if not hasattr(offered, "__agentrl_tool__"):
        raise RecipeError(
            f"{_label(owner)}.tools() gives {offered!r} ({type(offered).__name__})",
            remedy="give @tool methods (self.look), @tool functions, or tool.from_schema(name, description, ...)",
        )
    plain = getattr(offered, "__func__", offered)
    if plain not in _described:
        _described[plain] = _describe(plain)
    description, schema, arguments, texts = _described[plain]
    return ToolMethod(name_of(plain), description, schema, owner, offered, arguments, texts)


def _describe(function: Callable[..., Any]) -> _Described:
    try:
        return _described_by_hints(function)
    except RecipeError:
        raise
    except Exception as error:  # from Python or pydantic, for hints that are not types or not JSON types
        raise RecipeError(
            f"tool {function.__qualname__}: its arguments cannot be shown to a model: {str(error).splitlines()[0]}",
            remedy="take str, int, float, bool, list, dict, Literal, enums or pydantic models, under plain names",
        ) from error


def _described_by_hints(function: Callable[..., Any]) -> _Described:
    hints = typing.get_type_hints(function, include_extras=True)
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise RecipeError(f"tool {function.__qualname__}: *{parameter.name} cannot be shown to a model")
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise RecipeError(
                f"tool {function.__qualname__}: {parameter.name!r} is positional only; models give arguments by name",
                remedy="remove the / of its signature",
            )
        if parameter.name not in hints:
            raise RecipeError(
                f"tool {function.__qualname__}: argument {parameter.name!r} has no type hint",
                remedy="the model is shown a schema made of the type hints",
            )
        default = Field() if parameter.default is parameter.empty else parameter.default
        fields[parameter.name] = (hints[parameter.name], default)
    model = create_model(f"{function.__name__}_arguments", **fields)
    description, about = _docstring(inspect.getdoc(function) or "")
    schema = model.model_json_schema()
    schema.pop("title", None)
    schema.setdefault("properties", {})
    for entry in schema["properties"].values():
        entry.pop("title", None)
    for name, field in model.model_fields.items():
        entry = schema["properties"].get(str(field.validation_alias or name))
        if entry is not None and name in about:
            entry.setdefault("description", about[name])
    texts = frozenset(fields) if all(map(_is_any_text, model.model_fields.values())) else None
    return description, schema, TypeAdapter(model), texts


def _is_any_text(field: FieldInfo) -> bool:
    """Returns True if an argument is a required plain `str` under its own name."""
    return field.annotation is str and field.is_required() and not field.metadata and field.validation_alias is None


def _docstring(text: str) -> tuple[str, dict[str, str]]:
    """Splits a Google-style docstring into its description and its arguments' descriptions."""
    head, _, rest = text.partition("\nArgs:\n")
    block = re.split(r"\n(?=\S)", rest)[0]
    about: dict[str, str] = {}
    for match in re.finditer(r"^ {4}(\w+)(?: \([^)]*\))?: *(.*(?:\n {6,}.*)*)", block, re.MULTILINE):
        about[match[1]] = " ".join(match[2].split())
    return head.strip(), about
