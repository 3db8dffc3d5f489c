"""Checks that a class has the methods of its kind's contract, with compatible signatures."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def may_be_sync(function: F) -> F:
    """Marks an `async` method of a contract that a plug-in may define without `async`."""
    function.__agentrl_may_be_sync__ = True  # type: ignore[attr-defined]
    return function


@functools.lru_cache(maxsize=1024)
def misfit(found: type, contract: type) -> str | None:
    """Returns why a class does not satisfy a base class or protocol, in words; None if it does."""
    if missing := sorted(getattr(found, "__abstractmethods__", ())):
        return f"lacks the method {', '.join(missing)}"
    protocol = getattr(contract, "_is_protocol", False)
    for name, asked in _methods(contract) if protocol or issubclass(found, contract) else ():
        own = inspect.getattr_static(found, name, None)
        if own is None:
            return f"lacks the method {name}{inspect.signature(asked)}"
        if own is not asked and (why := _differs(found, name, own, asked)):
            return why
    return None


def _methods(contract: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    """The public methods of a contract, those of its bases included."""
    for name in dir(contract):
        method = inspect.getattr_static(contract, name)
        if not name.startswith("_") and inspect.isfunction(method):
            yield name, method


def _differs(found: type, name: str, own: Any, asked: Callable[..., Any]) -> str | None:
    function = getattr(found, name)
    if not inspect.isfunction(inspect.unwrap(function)) and not inspect.ismethod(function):
        return None  # a callable of another kind: its signature is not checked
    bound = isinstance(own, staticmethod | classmethod)
    arguments, named = _call(asked, bound)
    try:
        inspect.signature(function).bind(*arguments, **named)
    except TypeError:
        return f"{name} takes {inspect.signature(function)}, and is called as {name}{inspect.signature(asked)}"
    strict = not hasattr(asked, "__agentrl_may_be_sync__")
    if strict and inspect.iscoroutinefunction(asked) and not _may_be_awaited(function):
        return f"{name} must be 'async def'"
    return None


def _call(asked: Callable[..., Any], bound: bool) -> tuple[list[None], dict[str, None]]:
    """Returns arguments for a call by the contract: all positional ones, and the keyword-only ones."""
    parameters = list(inspect.signature(asked).parameters.values())[bound:]
    named = {each.name: None for each in parameters if each.kind is each.KEYWORD_ONLY}
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [None for each in parameters if each.kind in positional], named


def _may_be_awaited(function: Callable[..., Any]) -> bool:
    """Returns True if the result can be awaited: it is a coroutine function, or its return annotation is an
    awaitable."""
    hint = inspect.signature(function).return_annotation
    return inspect.iscoroutinefunction(inspect.unwrap(function)) or "wait" in str(hint) or "Corout" in str(hint)
