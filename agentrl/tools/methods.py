"""What a model may call: the methods of tools, their schemas, and the check of arguments."""

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
from agentrl.types.parts.image import is_pil


@dataclass(frozen=True)
class ToolMethod:
    """One callable of the model's tool box.

    Attributes:
        name: as the model writes it.
        owner: the tool instance it belongs to.
        schema: JSON schema of the arguments (an object).
        arguments: checks them by type hints; None: by the schema.
        texts: names of the arguments if each takes every text and must be given; else None.
    """

    name: str
    description: str
    schema: dict[str, Any]
    owner: Tool
    function: Callable[..., Any]
    arguments: TypeAdapter[Any] | None = None
    texts: frozenset[str] | None = None

    def definition(self) -> dict[str, Any]:
        """As chat templates and APIs take it: `{"type": "function", "function": {...}}`."""
        function = {"name": self.name, "description": self.description, "parameters": self.schema}
        return {"type": "function", "function": function}

    async def call(self, arguments: dict[str, Any]) -> ToolResult:
        """Checks the arguments and runs the tool, on a copy of them: what it does to its arguments stays there.

        Raises:
            ToolError: the arguments do not fit the schema, in words for the model.
        """
        if self.texts == arguments.keys() and all(type(each) is str and each.isascii() for each in arguments.values()):
            checked: Mapping[str, Any] = arguments  # nothing to check, and nothing that can be changed
        else:
            own = msgspec.to_builtins(arguments)
            checked = self._by_schema(own) if self.arguments is None else self._by_hints(own)
        result = await called(self.owner, self.function, **checked)
        if isinstance(result, ToolResult):
            return result
        # To write a large picture as PNG takes seconds.
        return await in_thread(lambda: ToolResult(result)) if is_pil(result) else ToolResult(result)

    def _by_hints(self, arguments: dict[str, Any]) -> Mapping[str, Any]:
        assert self.arguments is not None
        if unknown := arguments.keys() - self.schema["properties"].keys():
            raise ToolError(f"unknown argument {sorted(unknown)[0]!r}; allowed: {sorted(self.schema['properties'])}")
        try:
            checked: Mapping[str, Any] = vars(self.arguments.validate_python(arguments))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise ToolError(f"argument {where!r}: {first['msg'].lower()}") from None
        return checked

    def _by_schema(self, arguments: dict[str, Any]) -> Mapping[str, Any]:
        return fitting(self.schema, arguments)

    @property
    def place(self) -> str:
        """The tool and where it is defined, for messages: `tool 'buy' (/shop/task.py:32)`."""
        function = getattr(self.function, "__agentrl_call__", self.function)
        code = getattr(getattr(function, "__func__", function), "__code__", None)
        where = f" ({code.co_filename}:{code.co_firstlineno})" if code is not None else ""
        return f"tool {self.name!r}{where}"


def methods_of(instance: Tool) -> list[ToolMethod]:
    """The tools of an instance that are known before it is opened: its `@tool` methods, in order of definition."""
    if isinstance(instance, FunctionTool):
        return [method(instance, instance.function)]
    found = own_methods(instance)
    if not found and type(instance).open is Tool.open and not isinstance(instance, Environment):
        raise RecipeError(  # one that only prepares the sandbox is fine
            f"tool {type(instance).__name__} has no @tool method", remedy="mark its methods with @tool"
        )
    return [method(instance, each) for each in found]


def toolbox(instances: Iterable[Tool]) -> dict[str, ToolMethod]:
    """All methods by name that are known before tools are opened.

    Raises:
        RecipeError: two tools offer the same name.
    """
    return by_name(method for instance in instances for method in methods_of(instance))


def by_name(methods: Iterable[ToolMethod]) -> dict[str, ToolMethod]:
    """Methods by name, in their order.

    Raises:
        RecipeError: two have the same name.
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


# The argument model is the same for every episode's instance: building it costs more than most tool calls. A function
# that an environment defines in `tools()` is forgotten with it.
_Described = tuple[str, dict[str, Any], TypeAdapter[Any], frozenset[str] | None]
_described: WeakKeyDictionary[Callable[..., Any], _Described] = WeakKeyDictionary()


def method(owner: Tool, offered: Any) -> ToolMethod:
    """What an instance offers, as the model may call it: a `@tool` method or function, or a tool from a schema.

    Raises:
        RecipeError: it is none of these, or its arguments cannot be shown to a model.
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
    except Exception as error:  # of Python, of pydantic: for what is no type, or none that JSON has
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
    """Whether an argument takes every text, under its own name, and must be given."""
    return field.annotation is str and field.is_required() and not field.metadata and field.validation_alias is None


def _docstring(text: str) -> tuple[str, dict[str, str]]:
    """Splits a Google-style docstring into its description and its arguments' descriptions."""
    head, _, rest = text.partition("\nArgs:\n")
    block = re.split(r"\n(?=\S)", rest)[0]
    about: dict[str, str] = {}
    for match in re.finditer(r"^ {4}(\w+)(?: \([^)]*\))?: *(.*(?:\n {6,}.*)*)", block, re.MULTILINE):
        about[match[1]] = " ".join(match[2].split())
    return head.strip(), about
