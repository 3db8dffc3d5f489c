"""The `Tool` base, the `@tool` marker, and the schema that a model is shown.

A tool is a class whose `@tool` methods the model may call. One instance serves one episode, so its attributes
are the episode's state. A plain `async def` marked with `@tool` is a tool without state.
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import msgspec
from pydantic import Field, TypeAdapter, ValidationError, create_model

from agentrl.types import values
from agentrl.types.errors import RecipeError, ToolError
from agentrl.types.task import Task

if typing.TYPE_CHECKING:
    from agentrl.types.sandbox import Sandbox

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class ToolResult:
    """What a tool may return instead of a string.

    Attributes:
        text: what the model is shown. What is no text becomes it: None nothing, containers JSON, others by `str()`.
        done: the episode ends after this turn, whose other calls still run.
        answer: what the episode's rewards read as its answer; made text as `text` is.
        rewards: immediate reward components of the turn, finite numbers (also bools, and scalars of NumPy and torch).
            Those of the same name that several calls of one turn give add up.
    """

    text: str
    done: bool = False
    answer: str | None = None
    rewards: dict[str, float] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", values.text(self.text))
        object.__setattr__(self, "done", bool(self.done))
        if self.answer is not None:
            object.__setattr__(self, "answer", values.text(self.answer))


def tool(function: F) -> F:
    """Marks an async method (or a plain async function) as callable by the model."""
    if not inspect.iscoroutinefunction(function):
        raise TypeError(f"@tool: {function.__qualname__} must be 'async def'")
    function.__agentrl_tool__ = True  # type: ignore[attr-defined]
    return function


class Tool:
    """Base of tools with state. Constructor arguments are the settings in the recipe.

    Attributes:
        needs_sandbox: the runner then opens one for the episode, or refuses the recipe if it has none.
        parallel: whether several calls of one turn may run side by side. By default they run one after another, in
            the order in which the model wrote them, because they share the instance's state. Calls of different
            tools always run side by side.
        timeout_s: bound on one call; a call that runs longer is cancelled and the model is told.
    """

    needs_sandbox: ClassVar[bool] = False
    parallel: ClassVar[bool] = False
    timeout_s: float = 60.0

    async def open(self, task: Task, sandbox: Sandbox | None) -> None:
        """Prepares the episode. `sandbox` is None unless some tool of the recipe needs one."""

    async def close(self) -> None:
        """Frees what `open` took. Runs also when the episode failed."""

    def state_key(self) -> str | None:
        """The state that the next turn acts on, for anchor-state credit (GiGPO). None: no opinion.

        Bytes, numbers and JSON containers are taken, too: equal values are the same state.
        """
        return None


class FunctionTool(Tool):
    """A stateless tool made of one `@tool` function."""

    parallel = True

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function


@dataclass(frozen=True)
class ToolMethod:
    """One callable of the model's tool box.

    Attributes:
        name: as the model writes it.
        owner: the tool instance it belongs to.
        schema: JSON schema of the arguments (an object).
    """

    name: str
    description: str
    schema: dict[str, Any]
    owner: Tool
    function: Callable[..., Any]
    arguments: TypeAdapter[Any]

    def definition(self) -> dict[str, Any]:
        """As chat templates and APIs take it: `{"type": "function", "function": {...}}`."""
        function = {"name": self.name, "description": self.description, "parameters": self.schema}
        return {"type": "function", "function": function}

    async def call(self, arguments: dict[str, Any]) -> ToolResult:
        """Checks the arguments and runs the tool, on a copy of them: what it does to its arguments stays there.

        Raises:
            ToolError: the arguments do not fit the schema, in words for the model.
        """
        unknown = set(arguments) - set(self.schema["properties"])
        if unknown:
            raise ToolError(f"unknown argument {sorted(unknown)[0]!r}; allowed: {sorted(self.schema['properties'])}")
        try:
            checked = self.arguments.validate_python(msgspec.to_builtins(arguments))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise ToolError(f"argument {where!r}: {first['msg'].lower()}") from None
        result = await self.function(**vars(checked))
        return result if isinstance(result, ToolResult) else ToolResult(result)

    @property
    def place(self) -> str:
        """The tool and where it is defined, for messages: `tool 'buy' (/shop/task.py:32)`."""
        code = getattr(getattr(self.function, "__func__", self.function), "__code__", None)
        where = f" ({code.co_filename}:{code.co_firstlineno})" if code is not None else ""
        return f"tool {self.name!r}{where}"


def methods_of(instance: Tool) -> list[ToolMethod]:
    """The `@tool` methods of an instance, in order of definition."""
    if isinstance(instance, FunctionTool):
        return [_method(instance, instance.function)]
    names: dict[str, None] = {}
    for cls in reversed(type(instance).__mro__):
        names.update({name: None for name, value in vars(cls).items() if hasattr(value, "__agentrl_tool__")})
    if not names and type(instance).open is Tool.open:  # one that only prepares the sandbox is fine
        raise RecipeError(
            f"tool {type(instance).__name__} has no @tool method", remedy="mark its async methods with @tool"
        )
    return [_method(instance, getattr(instance, name)) for name in names]


def toolbox(instances: Iterable[Tool]) -> dict[str, ToolMethod]:
    """All methods by name.

    Raises:
        RecipeError: two tools offer the same name.
    """
    box: dict[str, ToolMethod] = {}
    for instance in instances:
        for method in methods_of(instance):
            if (other := box.get(method.name)) is not None:
                raise RecipeError(
                    f"tool name {method.name!r} is offered by both {_label(other.owner)} and {_label(instance)}",
                    remedy="rename one of the methods or drop one of the tools",
                )
            box[method.name] = method
    return box


def _label(instance: Tool) -> str:
    return instance.function.__qualname__ if isinstance(instance, FunctionTool) else type(instance).__name__


# The argument model is the same for every episode's instance: building it costs more than most tool calls.
_described: dict[Callable[..., Any], tuple[str, dict[str, Any], TypeAdapter[Any]]] = {}


def _method(owner: Tool, function: Callable[..., Any]) -> ToolMethod:
    plain = getattr(function, "__func__", function)
    if plain not in _described:
        _described[plain] = _describe(plain)
    description, schema, arguments = _described[plain]
    return ToolMethod(plain.__name__, description, schema, owner, function, arguments)


def _describe(function: Callable[..., Any]) -> tuple[str, dict[str, Any], TypeAdapter[Any]]:
    try:
        return _described_by_hints(function)
    except RecipeError:
        raise
    except Exception as error:  # of Python, of pydantic: for what is no type, or none that JSON has
        raise RecipeError(
            f"tool {function.__qualname__}: its arguments cannot be shown to a model: {str(error).splitlines()[0]}",
            remedy="take str, int, float, bool, list, dict, Literal, enums or pydantic models, under plain names",
        ) from error


def _described_by_hints(function: Callable[..., Any]) -> tuple[str, dict[str, Any], TypeAdapter[Any]]:
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
    return description, schema, TypeAdapter(model)


def _docstring(text: str) -> tuple[str, dict[str, str]]:
    """Splits a Google-style docstring into its description and its arguments' descriptions."""
    head, _, rest = text.partition("\nArgs:\n")
    block = re.split(r"\n(?=\S)", rest)[0]
    about: dict[str, str] = {}
    for match in re.finditer(r"^ {4}(\w+)(?: \([^)]*\))?: *(.*(?:\n {6,}.*)*)", block, re.MULTILINE):
        about[match[1]] = " ".join(match[2].split())
    return head.strip(), about
