"""Calls of user code that may be `async def` or not: what is not runs in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import inspect
import threading
import weakref
from collections.abc import Callable
from typing import Any

from agentrl.types.errors import InfraError


async def called(owner: Any, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """The result of a function, which runs in a thread if it is synchronous. What it returns is awaited if it can be.

    Args:
        owner: whose synchronous methods run one after another, unless it is a tool whose calls may run side by side.
    """
    turn = turn_of(owner)
    if inspect.iscoroutinefunction(function):
        if turn is not None and turn.locked():  # a thread that was cancelled goes on
            await in_thread(_nothing, turn)
        return await function(*args, **kwargs)
    result = await in_thread(functools.partial(function, *args, **kwargs), turn)
    return await result if inspect.isawaitable(result) else result


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


async def in_thread(call: Callable[[], Any], turn: threading.Lock | None = None) -> Any:
    """The result of a blocking call.

    A thread cannot be ended: after a cancellation it goes on, and its result is dropped. Each call has a daemon thread
    of its own, so that calls which hang keep neither other episodes waiting nor the process alive.

    Args:
        turn: held while the call runs. A call that is cancelled before its turn does not run.

    Raises:
        InfraError: the system starts no more threads.
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def run() -> None:
        try:
            with turn or contextlib.nullcontext():
                result = None if ended.cancelled() else context.run(call)
            done = functools.partial(_settle, ended, result, None)
        except BaseException as error:
            done = functools.partial(_settle, ended, None, error)
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(done)

    try:
        threading.Thread(target=run, name="agentrl-tool", daemon=True).start()
    except RuntimeError as error:
        remedy = "lower concurrency, raise the limit of threads (ulimit -u, pids of the cgroup), or write async tools"
        raise InfraError(f"no thread for a tool: {error}", remedy=remedy) from None
    return await ended


def _settle(ended: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if ended.done():  # cancelled: nobody waits
        return
    if isinstance(error, StopIteration):  # a future does not take it
        error = RuntimeError(f"StopIteration: {error}")
    if error is None:
        ended.set_result(result)
    else:
        ended.set_exception(error)
