"""The bases `Tool` and `Environment`, and the `@tool` marker.

A tool is a class whose `@tool` methods the model may call. One instance serves one episode, so its attributes
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
    """What a tool may return instead of a string.

    Attributes:
        text: what the model is shown. What is no text becomes it: None nothing, containers JSON, others by `str()`.
        done: the episode ends after this turn, whose other calls still run.
        answer: what the episode's rewards read as its answer; made text as `text` is.
        rewards: immediate reward components of the turn, finite numbers (also bools, and scalars of NumPy and torch).
            Those of the same name that several calls of one turn give add up.
        images: what the model is shown behind the text: bytes or path of a file, data URL, or PIL image. They become
            bytes. A tool that shows one image may return the PIL image itself.
        points: where on the image that was shown last before it the call acted, as (x, y) in pixels of that image, x to
            the right and y down; several are a path (a drag). The page marks them.
        ends_reply: calls that stand behind this one in the reply, and have not begun, are skipped: they were meant for
            a state that is gone. The model is told. See `Tool.ends_replies`.

    Raises:
        ImageRefused: one is no image, or damaged.
        ValueRefused: a point is no pair of finite numbers.
    """

    text: str
    done: bool = False
    answer: str | None = None
    rewards: dict[str, float] | None = None
    images: Sequence[Any] = ()
    points: Sequence[tuple[float, float]] = ()
    ends_reply: bool = False

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
    """What an environment may answer to a reply, instead of a string.

    Attributes:
        role: of the message that the model is shown.
    """

    role: str = "user"

    def __post_init__(self) -> None:
        super().__post_init__()
        vars(self)["role"] = values.text(self.role)


def _mark(function: Any, name: str, value: Any) -> None:
    """Marks a function, or that of a method of an object: a bound method takes no attributes.

    Raises:
        TypeError: it takes none, either, because it is not written in Python.
    """
    try:
        setattr(getattr(function, "__func__", function), name, value)
    except AttributeError:
        raise TypeError(f"@tool cannot mark {function!r}: call it from a function of your own") from None


class _ToolMarker:
    """`@tool` marks a method or plain function as callable by the model. One that is not `async` runs in a thread."""

    __name__ = "tool"

    def __call__(self, function: F) -> F:
        if not callable(function) or isinstance(function, type):
            raise TypeError(f"@tool stands before a function or method, not before {function!r}")
        _mark(function, "__agentrl_tool__", True)
        return function

    @staticmethod
    def named(name: str) -> Callable[[F], F]:
        """`@tool.named("open")`: as `@tool`, under a name that the class has another use for."""

        def mark(function: F) -> F:
            _mark(function, "__agentrl_name__", name)
            return tool(function)

        return mark

    @staticmethod
    def from_schema(
        name: str, description: str, schema: Mapping[str, Any] | None, call: Callable[[dict[str, Any]], Any]
    ) -> SchemaTool:
        """A tool whose arguments a JSON schema describes, for `tools` of a recipe or `Environment.tools`.

        Args:
            schema: of the arguments, an object; None: there are none.
            call: takes the arguments as one dict; may be `async`.

        Raises:
            RecipeError: the name is empty, or the schema is not that of an object.
        """
        return schema_tool(name, description, schema, call)


tool = _ToolMarker()


class Tool:
    """Base of tools with state. Constructor arguments are the settings in the recipe.

    Attributes:
        needs_sandbox: the runner then opens one for the episode, or refuses the recipe if it has none.
        stateless: whether calls leave nothing behind that a later call would see.
        forkable: whether an episode with it may be forked (docs/fork.md): its calls give the same results when they run
            again, or it saves and restores its state. False for what acts on the world outside.
        keeps_files_alone: whether what calls leave behind is files of the sandbox, and nothing else; its `open` writes
            none. A fork then takes a snapshot of the sandbox.
        parallel: whether several calls of one turn may run side by side. By default they run one after another, in
            the order in which the model wrote them, because they share the instance's state. Calls of different
            tools run side by side.
        ends_replies: whether a call may end the reply (`ToolResult.ends_reply`). The calls of a reply with a call of
            such a tool all run one after another, those of other tools, too, so that none behind it has begun.
        offers: which of its `@tool` methods the model may call, by name; None: all.
        timeout_s: bound on one call, from when it first waits for something; a call that runs longer is cancelled and
            the model is told.
    """

    needs_sandbox: bool = False
    stateless: ClassVar[bool] = False
    forkable: ClassVar[bool] = True
    keeps_files_alone: ClassVar[bool] = False
    parallel: ClassVar[bool] = False
    ends_replies: ClassVar[bool] = False
    offers: Collection[str] | None = None
    timeout_s: float = 60.0

    @may_be_sync
    async def open(self, task: Task, sandbox: Sandbox | None) -> None:
        """Prepares the episode. `sandbox` is None unless some tool of the recipe needs one."""

    @may_be_sync
    async def close(self) -> None:
        """Frees what `open` took. Runs also when the episode failed."""

    async def check_answers(self) -> None:
        """Asked after a call, or the whole episode, ran out of time: whether what the tool speaks to still answers.

        Raises:
            InfraError: it does not. The agent is not to blame for the time.
            ToolServerEnded: it does not, perhaps because of the agent's calls.
        """

    @property
    def knows_state(self) -> bool:
        """Whether `state_key` can say something: the class has one of its own."""
        return type(self).state_key is not Tool.state_key

    def state_key(self) -> str | None:
        """The state that the next turn acts on, for anchor-state credit (GiGPO). None: no opinion.

        Bytes, numbers and JSON containers are taken, too: equal values are the same state.
        """
        return None


class _OwnInfo:
    """The `info` of a class: every object gets a copy when it first asks, and may add to it."""

    def __init__(self, info: Mapping[str, Any]) -> None:
        self.info = info

    def __get__(self, instance: Environment | None, owner: type[Environment]) -> Any:
        """The object's own, which it has from now on."""
        return self.info if instance is None else vars(instance).setdefault("info", copy.deepcopy(self.info))


class Environment(Tool):
    """A tool box with a state, an opening and a voice. Everything of it is optional.

    Attributes:
        info: stored with the episode; read when it has ended. JSON.
    """

    info: dict[str, Any] = _OwnInfo({})  # type: ignore[assignment]

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        if isinstance(info := vars(cls).get("info"), Mapping):
            cls.info = _OwnInfo(info)  # type: ignore[assignment]

    def tools(self) -> Sequence[Any]:
        """What the model may call now: `@tool` methods of this object, `@tool` functions, `tool.from_schema(...)`.

        Read after `open` and before every reply, where a subclass defines it. Default: all `@tool` methods.
        """
        return own_methods(self)

    @may_be_sync
    async def call_tool(self, name: str, arguments: dict[str, Any]) -> Any:
        """Runs a tool that the task defines (`Task.tools`). Returns what a tool returns."""
        raise NotImplementedError

    @may_be_sync
    async def save(self) -> Any:
        """The state of the episode, as JSON; asked before every turn and stored with it, where a subclass defines it.

        With `restore`, it lets a stored episode go on from any of its turns (docs/fork.md).
        """
        return None

    @may_be_sync
    async def restore(self, state: Any) -> None:
        """Takes a state that `save` gave, after `open`. Needed where `save` is defined."""

    @may_be_sync
    async def opening(self) -> Sequence[Message] | Message | str:
        """What the model sees first, after the task's instruction: messages, or the text of one from the user.

        Contents may be lists of text and image parts (docs/images.md)."""
        return []

    @may_be_sync
    async def respond(self, reply: Reply) -> Any:
        """What follows a reply without a tool call: text, or an `Observation`. None: the reply is the final answer."""
        return None


def own_methods(instance: Tool) -> list[Callable[..., Any]]:
    """The `@tool` methods that an instance offers, in order of definition."""
    found = [getattr(instance, name) for name in _marked(type(instance))]
    return found if instance.offers is None else [each for each in found if name_of(each) in instance.offers]


def name_of(function: Callable[..., Any]) -> str:
    """The name by which a model calls a `@tool` method or function."""
    plain = getattr(function, "__func__", function)
    return str(getattr(plain, "__agentrl_name__", plain.__name__))


def _marked(cls: type) -> Iterator[str]:
    names: dict[str, None] = {}
    for each in reversed(cls.__mro__):
        names.update({name: None for name, value in vars(each).items() if hasattr(value, "__agentrl_tool__")})
    return iter(names)


class FunctionTool(Tool):
    """A stateless tool made of one `@tool` function, or of a schema."""

    stateless = parallel = True

    def __init__(self, function: Callable[..., Any] | SchemaTool) -> None:
        self.function = function
