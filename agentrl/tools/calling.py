"""Calls of user code that may be `async def` or not: what is not runs in a thread."""

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
    """The result of a function, which runs in a thread if it is synchronous. What it returns is awaited if it can be.

    Args:
        owner: whose synchronous methods run one after another, unless it is a tool whose calls may run side by side.
    """
    if _is_async(function):
        turn = _turns.get(id(owner))
        if turn is not None and turn.locked():  # a thread that was cancelled goes on
            await in_thread(_nothing, turn)
        return await function(*args, **kwargs)
    result = await in_thread(functools.partial(function, *args, **kwargs), turn_of(owner))
    return await result if inspect.isawaitable(result) else result


def _is_async(function: Callable[..., Any]) -> bool:
    code = getattr(function, "__code__", None)  # of most: quicker to ask than `inspect` is
    return bool(code is not None and code.co_flags & inspect.CO_COROUTINE) or inspect.iscoroutinefunction(function)


class OutOfTime(Exception):
    """A call took longer than it may."""


async def timed(seconds: float, call: Coroutine[Any, Any, T]) -> T:
    """The result of a call. Its time begins when it first waits for something: a call that never does needs no timer.

    Raises:
        OutOfTime: the time is over. A `TimeoutError` is the call's own.
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
    """The rest of a coroutine that has begun and waits for a future."""

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
            fault = None  # its traceback knows this frame, which would know it


# By id, and not in the object: its attributes are its state, which may be copied, compared or written out.
_turns: dict[int, threading.Lock] = {}


def turn_of(owner: Any) -> threading.Lock | None:
    """The lock that threads of one object hold while they run."""
    if getattr(owner, "parallel", False):
        return None
    if (key := id(owner)) not in _turns:
        _turns[key] = threading.Lock()
        weakref.finalize(owner, _turns.pop, key, None).atexit = False
    return _turns[key]


def _nothing() -> None:
    """To wait for a turn."""
