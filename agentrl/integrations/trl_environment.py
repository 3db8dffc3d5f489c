"""Environments written for TRL's `environment_factory`, as tools and as a reward. The package trl is not needed.

Such an environment is a class with `reset(**row)` and public methods, which the model calls. `get_reward()`, or the
attribute `reward`, scores the episode.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from agentrl.tools.base import Environment, ToolResult, tool
from agentrl.types.errors import RecipeError, ToolError
from agentrl.types.task import Message, Task

_NOT_CALLED = ("reset", "get_reward")


class TrlEnvironment(Environment):
    """Plays an environment of TRL's `environment_factory`: each public method but `reset` and `get_reward` is a tool.

    `reset` gets the fields of the task's row that it names, all of them with `**row`, and `prompt`, the task's
    messages. The text that it returns is a message of the user. A method that raises tells the model why; one that
    returns a list of parts, texts and images, shows the model both.
    """

    def __new__(cls, factory: Callable[[], Any]) -> TrlEnvironment:
        """Makes an instance of a class that has the environment's methods."""
        return object.__new__(type(cls.__name__, (cls,), _methods(_class_of(factory))))

    def __init__(self, factory: Callable[[], Any]) -> None:
        """Keeps the factory.

        Args:
            factory: the class, or a function that returns an instance: `./task.py:Name`.
        """
        self._factory = factory
        self._told: Any = None
        self.environment: Any = None

    async def open(self, task: Task, sandbox: Any) -> None:
        """Makes the environment and resets it."""
        self.environment = self._factory()
        row = {**task.data, "prompt": task.instruction}
        told = self.environment.reset(**_accepted(self.environment.reset, row))
        self._told = await told if inspect.isawaitable(told) else told

    async def opening(self) -> list[Message]:
        """Returns a message of the user with the text, or the list of parts, that `reset` returned."""
        return [{"role": "user", "content": self._told}] if self._told else []


async def trl_environment(env: Any) -> float | None:
    """Reward of an environment of TRL: `get_reward()`, or its attribute `reward`. If it is None, the episode
    has no reward.

    Raises:
        RecipeError: the episode's environment is none of TRL's, or has neither.
    """
    if not isinstance(env, TrlEnvironment):
        remedy = "tools: [{trl_environment: {factory: ./task.py:Name}}], before other environments"
        raise RecipeError("the episode has no environment of TRL", place="rewards.trl_environment", remedy=remedy)
    inner = env.environment
    if callable(getattr(inner, "get_reward", None)):
        value = inner.get_reward()
        value = await value if inspect.isawaitable(value) else value
    elif hasattr(inner, "reward"):
        value = inner.reward
    else:
        remedy = "define get_reward(self), or set self.reward; or write a reward function with the parameter env"
        raise RecipeError(
            f"{type(inner).__name__} has no get_reward and no reward", place="rewards.trl_environment", remedy=remedy
        )
    return None if value is None else float(value)


def _class_of(factory: Callable[[], Any]) -> type:
    """Returns the class of the environments.

    Raises:
        RecipeError: the class has no `reset`, or no other public method.
    """
    place = "tools.trl_environment.factory"
    made = factory if isinstance(factory, type) else type(factory())
    if not inspect.isfunction(getattr(made, "reset", None)):
        raise RecipeError(f"{made.__name__} has no method reset", place=place, remedy="define reset(self, **row)")
    if not any(_public(made)):
        raise RecipeError(f"{made.__name__} has no public method", place=place, remedy="the model calls its methods")
    return made


def _public(made: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yields the methods that are tools, in order of definition."""
    names = dict.fromkeys(name for each in reversed(made.__mro__) for name in vars(each))
    for name in names:
        function = inspect.getattr_static(made, name)
        if inspect.isfunction(function) and not name.startswith("_") and name not in _NOT_CALLED:
            yield name, function


def _methods(made: type) -> dict[str, Any]:
    """Methods that call those of the environment. Their own names cannot clash with those of `Environment`."""
    return {f"trl_{name}": tool.named(name)(_calling(name, function)) for name, function in _public(made)}


def _calling(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def call_async(self: TrlEnvironment, **arguments: Any) -> Any:
            try:
                return _shown(await getattr(self.environment, name)(**arguments))
            except Exception as error:  # TRL shows it to the model, and environments rely on that
                raise ToolError(str(error) or type(error).__name__) from error

        return call_async

    @functools.wraps(function)
    def call(self: TrlEnvironment, **arguments: Any) -> Any:
        try:
            return _shown(getattr(self.environment, name)(**arguments))
        except Exception as error:
            raise ToolError(str(error) or type(error).__name__) from error

    return call


def _shown(found: Any) -> Any:
    """Returns a list of parts, `{"type": "text", "text": ...}` and `{"type": "image", "image": ...}`, as a result with
    images; anything else as it is."""
    parts = found if isinstance(found, list) else []
    kinds = {each.get("type") if isinstance(each, Mapping) else None for each in parts}
    if not parts or not kinds <= {"text", "image"}:
        return found
    texts = [str(each["text"]) for each in parts if each["type"] == "text"]
    return ToolResult("\n".join(texts), images=[each["image"] for each in parts if each["type"] == "image"])


def _accepted(reset: Callable[..., Any], row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields that `reset` takes."""
    parameters = inspect.signature(reset).parameters
    if any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        return dict(row)
    return {name: value for name, value in row.items() if name in parameters}
