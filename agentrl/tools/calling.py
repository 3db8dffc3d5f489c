"""Calls of user code, `async def` or synchronous. Synchronous code runs in a thread."""

from __future__ import annotations

import functools
import inspect
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, TypeVar

from agentrl.types.clocks.deadline import Deadline
from agentrl.types.clocks.threads import in_thread

T = TypeVar("T")


async def called(owner: Any, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Calls a function, in a thread if it is synchronous, and returns its result, awaited if awaitable.

    Args:
        owner: object whose synchronous methods run sequentially, unless it is a tool with `parallel`.
    """
    if _is_async(function):
        turn = _turns.get(id(owner))
        if turn is not None and turn.locked():  # a cancelled call's thread is still running
            await in_thread(_nothing, turn)
        return await function(*args, **kwargs)
    result = await in_thread(functools.partial(function, *args, **kwargs), turn_of(owner))
    return await result if inspect.isawaitable(result) else result


def _is_async(function: Callable[..., Any]) -> bool:
    code = getattr(function, "__code__", None)  # present on most functions, and faster than `inspect`
    return bool(code is not None and code.co_flags & inspect.CO_COROUTINE) or inspect.iscoroutinefunction(function)


class OutOfTime(Exception):
    """A call exceeded its timeout."""


async def timed(seconds: float, call: Coroutine[Any, Any, T]) -> T:
    """Awaits a call with a timeout that starts at its first wait; a call that never waits needs no timer.

    Raises:
        OutOfTime: the timeout expired. A `TimeoutError` comes from the call itself.
    """
    try:
        waits_for = call.send(None)
    except StopIteration as ended:
        result: T = ended.value
        return result
    try:
        async with Deadline(seconds) as deadline:
            return await _Rest(call, waits_for)
    except TimeoutError:
        if deadline.expired():
            raise OutOfTime from None
        raise


class _Rest(Awaitable[T]):
    """Remainder of a started coroutine that waits for a future."""

    def __init__(self, call: Coroutine[Any, Any, T], waits_for: Any) -> None:
        self.call, self.waits_for = call, waits_for

    def __await__(self) -> Generator[Any, Any, T]:
        fault: BaseException | None = None
        try:
            while True:
                try:
                    given = yield self.waits_for
                except BaseException as error:
                    fault = error
                try:
                    self.waits_for = self.call.send(given) if fault is None else self.call.throw(fault)
                except StopIteration as ended:
                    result: T = ended.value
                    return result
                fault = None
        finally:
            fault = None  # breaks the reference cycle of traceback and frame


# By id, and not in the object: its attributes are its state, which may be copied, compared or written out.
_turns: dict[int, threading.Lock] = {}


def turn_of(owner: Any) -> threading.Lock | None:
    """Returns the lock held by threads of one object while they run; None for `parallel` tools."""
    if getattr(owner, "parallel", False):
        return None
    if (key := id(owner)) not in _turns:
        _turns[key] = threading.Lock()
        weakref.finalize(owner, _turns.pop, key, None).atexit = False
    return _turns[key]


def _nothing() -> None:
    """To wait for a turn."""
