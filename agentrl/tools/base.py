"""The bases `Tool` and `Environment`, and the `@tool` marker.

A tool is a class with `@tool` methods, which the model may call. One instance serves one episode, so its attributes
are the episode's state. A plain function marked with `@tool` is a tool without state.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from agentrl.registry.contract import may_be_sync
from agentrl.tools.schema import SchemaTool, schema_tool
from agentrl.types import values
from agentrl.types.parts.image import checked_image, is_pil
from agentrl.types.task import Message, Task

if TYPE_CHECKING:
    from agentrl.chat.formats.parser import Reply
    from agentrl.types.sandbox import Sandbox

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class ToolResult:
    """Result of a tool call, for tools that return more than a string.

    Attributes:
        text: shown to the model. Other types are converted: None to nothing, containers to JSON, the rest by `str()`.
        done: ends the episode after this turn; the turn's other calls still run.
        answer: the episode's answer, read by rewards; converted to text as `text` is.
        rewards: immediate reward components of the turn, finite numbers (also bools, and scalars of NumPy and torch).
            Several calls of one turn add up by name.
        images: shown to the model after the text: bytes or path of a file, data URL, or PIL image; converted to bytes.
            A tool that shows one image may return the PIL image itself.
        points: location of the action on the last image shown before the call, as (x, y) in pixels of that image, x to
            the right and y down; several are a path (a drag). The page marks them.
        ends_reply: skips later calls of the reply that have not begun, because they were meant for an earlier state.
            The model gets a note. See `Tool.ends_replies`.
        executed: False if the environment did nothing with the call: a game that says `Nothing happens.`, a click
            outside all buttons. Credit that reads whether turns were carried out (`spa`) counts such a turn as not.

    Raises:
        ImageRefused: an image is damaged or of an unknown type.
        ValueRefused: a point is not a pair of finite numbers.
    """

    text: str
    done: bool = False
    answer: str | None = None
    rewards: dict[str, float] | None = None
    images: Sequence[Any] = ()
    points: Sequence[tuple[float, float]] = ()
    ends_reply: bool = False
    executed: bool = True

    def __post_init__(self) -> None:
        own = vars(self)
        if is_pil(self.text):
            own["images"], own["text"] = (self.text, *self.images), ""
        own["text"], own["done"] = values.text(self.text), bool(self.done)
        own["images"], own["points"] = tuple(map(checked_image, self.images)), tuple(map(values.point, self.points))
        if self.answer is not None:
            own["answer"] = values.text(self.answer)


@dataclass(frozen=True)
class Observation(ToolResult):
    """Answer of an environment to a reply, for environments that return more than a string.

    Attributes:
        role: role of the message shown to the model.
    """

    role: str = "user"

    def __post_init__(self) -> None:
        super().__post_init__()
        vars(self)["role"] = values.text(self.role)


def _mark(function: Any, name: str, value: Any) -> None:
    """Sets an attribute on a function, or on the function of a bound method, which takes no attributes itself.

    Raises:
        TypeError: the function takes no attributes because it is not written in Python.
    """
    try:
        setattr(getattr(function, "__func__", function), name, value)
    except AttributeError:
        raise TypeError(f"@tool cannot mark {function!r}: call it from a function of your own") from None


class _ToolMarker:
    """`@tool` marks a method or plain function as callable by the model. Synchronous ones run in a thread."""

    __name__ = "tool"

    def __call__(self, function: F) -> F:
        if not callable(function) or isinstance(function, type):
            raise TypeError(f"@tool stands before a function or method, not before {function!r}")
        _mark(function, "__agentrl_tool__", True)
        return function

    @staticmethod
    def named(name: str) -> Callable[[F], F]:
        """`@tool.named("open")`: `@tool` under another name, for names that the class itself uses."""

        def mark(function: F) -> F:
            _mark(function, "__agentrl_name__", name)
            return tool(function)

        return mark

    @staticmethod
    def from_schema(
        name: str, description: str, schema: Mapping[str, Any] | None, call: Callable[[dict[str, Any]], Any]
    ) -> SchemaTool:
        """Makes a tool with arguments described by a JSON schema, for `tools` of a recipe or `Environment.tools`.

        Args:
            schema: schema of the arguments, an object; None: no arguments.
            call: takes the arguments as one dict; may be `async`.

        Raises:
            RecipeError: the name is empty, or the schema does not describe an object.
        """
        return schema_tool(name, description, schema, call)


tool = _ToolMarker()


class Tool:
    """Base class of tools with state. Constructor arguments are the settings in the recipe.

    Attributes:
        needs_sandbox: the runner opens a sandbox for the episode, or refuses a recipe without one.
        stateless: calls leave no state for later calls.
        forkable: episodes with the tool may be forked (docs/fork.md): calls repeat with the same results, or the tool
            saves and restores its state. False for tools that act on the outside world.
        keeps_files_alone: calls change only files of the sandbox, and `open` writes none. A fork then takes a snapshot
            of the sandbox.
        parallel: several calls of one turn may run concurrently. By default they run sequentially, in the order of the
            reply, because they share the instance's state. Calls of different tools run concurrently.
        ends_replies: a call may end the reply (`ToolResult.ends_reply`). All calls of a reply with such a call run
            sequentially, also those of other tools, so that no later call has begun.
        offers: names of the `@tool` methods that the model may call; None: all.
        timeout_s: timeout of one call, counted from its first wait; a call that runs longer is cancelled and the model
            gets an error.
    """

    needs_sandbox: bool = False
    stateless: ClassVar[bool] = False
    forkable: ClassVar[bool] = True
    keeps_files_alone: ClassVar[bool] = False
    parallel: ClassVar[bool] = False
    ends_replies: ClassVar[bool] = False
    offers: Collection[str] | None = None
    timeout_s: float = 60.0

    def check_task(self, task: Task) -> None:
        """Checks before the first episode (`agentrl recipe check`) that a task has the data that the tool needs.

        Raises:
            TaskError: it has not.
        """

    @may_be_sync
    async def open(self, task: Task, sandbox: Sandbox | None) -> None:
        """Prepares the episode. `sandbox` is None unless some tool of the recipe needs one."""

    @may_be_sync
    async def close(self) -> None:
        """Releases the resources of `open`. Also runs when the episode failed."""

    async def check_answers(self) -> None:
        """Checks after a timeout of a call or of the episode that the tool's backend still answers.

        Raises:
            InfraError: no answer, through no fault of the agent.
            ToolServerEnded: no answer, perhaps because of the agent's calls.
        """

    @property
    def knows_state(self) -> bool:
        """True if the class defines its own `state_key`."""
        return type(self).state_key is not Tool.state_key

    def state_key(self) -> str | None:
        """Returns a key of the state before the next turn, for anchor-state credit (GiGPO); None: unknown.

        Bytes, numbers and JSON containers are accepted too: equal values mean the same state.
        """
        return None


class _OwnInfo:
    """Descriptor of a class-level `info`: each instance gets its own copy on first access."""

    def __init__(self, info: Mapping[str, Any]) -> None:
        self.info = info

    def __get__(self, instance: Environment | None, owner: type[Environment]) -> Any:
        """Returns the instance's copy, made on first access."""
        return self.info if instance is None else vars(instance).setdefault("info", copy.deepcopy(self.info))


class Environment(Tool):
    """Tools with state, an opening message and answers to replies. Every method is optional.

    Attributes:
        info: JSON stored with the episode; read when the episode has ended.
    """

    info: dict[str, Any] = _OwnInfo({})  # type: ignore[assignment]

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        if isinstance(info := vars(cls).get("info"), Mapping):
            cls.info = _OwnInfo(info)  # type: ignore[assignment]

    def tools(self) -> Sequence[Any]:
        """Returns the tools callable now: `@tool` methods of this object, `@tool` functions, `tool.from_schema(...)`.

        If a subclass overrides it, it is called after `open` and before every reply. Default: all `@tool` methods.
        """
        return own_methods(self)

    @may_be_sync
    async def call_tool(self, name: str, arguments: dict[str, Any]) -> Any:
        """Runs a tool defined by the task (`Task.tools`) and returns its result."""
        raise NotImplementedError

    @may_be_sync
    async def save(self) -> Any:
        """Returns the state of the episode as JSON; if overridden, called before every turn and stored with it.

        With `restore`, a stored episode can continue from any of its turns (docs/fork.md).
        """
        return None

    @may_be_sync
    async def restore(self, state: Any) -> None:
        """Restores a state returned by `save`, after `open`. Required if `save` is defined."""

    @may_be_sync
    async def opening(self) -> Sequence[Message] | Message | str:
        """Returns the first messages after the task's instruction, or the text of one user message.

        Contents may be lists of text and image parts (docs/images.md)."""
        return []

    @may_be_sync
    async def respond(self, reply: Reply) -> Any:
        """Answers a reply without a tool call: text, or an `Observation`; None makes the reply the final answer."""
        return None


def own(sandbox: Sandbox | None) -> Sandbox:
    """Returns the sandbox of a tool with `needs_sandbox`.

    Raises:
        TypeError: the tool was opened without one.
    """
    if sandbox is None:
        raise TypeError("the tool was opened without a sandbox: needs_sandbox = True asks for one")
    return sandbox


def own_methods(instance: Tool) -> list[Callable[..., Any]]:
    """Returns the `@tool` methods of an instance that `offers` allows, in order of definition."""
    found = [getattr(instance, name) for name in _marked(type(instance))]
    return found if instance.offers is None else [each for each in found if name_of(each) in instance.offers]


def name_of(function: Callable[..., Any]) -> str:
    """Returns the tool name of a `@tool` method or function."""
    plain = getattr(function, "__func__", function)
    return str(getattr(plain, "__agentrl_name__", plain.__name__))


def _marked(cls: type) -> Iterator[str]:
    names: dict[str, None] = {}
    for each in reversed(cls.__mro__):
        names.update({name: None for name, value in vars(each).items() if hasattr(value, "__agentrl_tool__")})
    return iter(names)


class FunctionTool(Tool):
    """Stateless tool around one `@tool` function or schema tool."""

    stateless = parallel = True

    def __init__(self, function: Callable[..., Any] | SchemaTool) -> None:
        self.function = function
