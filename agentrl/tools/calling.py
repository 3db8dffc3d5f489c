"""Calls of user code, `async def` or synchronous. Synchronous code runs in a thread."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import inspect
import os
import queue
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, TypeVar

from agentrl.types.clocks.deadline import Deadline
from agentrl.types.errors import InfraError

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


GIVE_WAY_S = 0.01
_gave_way = 0.0


async def give_way() -> None:
    """Yields to the event loop at most once in 10 ms, for calls that may never wait.

    Waiting for a thread counts as a yield.
    """
    global _gave_way
    if time.monotonic() - _gave_way > GIVE_WAY_S:
        await asyncio.sleep(0)
        _gave_way = time.monotonic()


# Keyed by id instead of stored on the object: its attributes are episode state and may be copied or serialized.
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
    """Does nothing; used to wait for a lock."""


async def in_thread(call: Callable[[], Any], turn: threading.Lock | None = None) -> Any:
    """Runs a blocking call in a thread and returns its result.

    A thread cannot be killed: after a cancellation it continues and its result is dropped. Each call gets an idle
    daemon thread or a new one, so that hanging calls block neither other episodes nor the exit of the process.

    Args:
        turn: lock held while the call runs. A call cancelled before it gets the lock does not run.

    Raises:
        InfraError: the system cannot start more threads.
    """
    global _gave_way
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def run() -> Callable[[], None]:
        try:
            with turn or contextlib.nullcontext():
                result = None if ended.cancelled() else context.run(call)
            done = functools.partial(_settle, ended, result, None)
        except BaseException as error:
            done = functools.partial(_settle, ended, None, error)
        return functools.partial(_tell, loop, done)

    _worker().calls.put(run)
    found = await ended
    _gave_way = time.monotonic()
    return found


class _Worker(threading.Thread):
    """Thread that runs calls one after another and exits after `IDLE_S` without one."""

    def __init__(self) -> None:
        super().__init__(name="agentrl-tool", daemon=True)
        self.calls: queue.SimpleQueue[Callable[[], Callable[[], None]]] = queue.SimpleQueue()

    def run(self) -> None:
        while True:
            try:
                tell = self.calls.get(timeout=IDLE_S)()
            except queue.Empty:
                with contextlib.suppress(ValueError):  # no longer idle: a call is on its way
                    _idle.remove(self)
                    return
                continue
            _idle.append(self)  # before the result is delivered, so that the next call finds this thread
            tell()
            del tell  # an idle thread keeps no references to the call


IDLE_S = 10.0
_idle: list[_Worker] = []
os.register_at_fork(after_in_child=_idle.clear)  # a fork has no threads


def _worker() -> _Worker:
    """Returns an idle thread or a new one: starting a thread costs more than most tool calls."""
    with contextlib.suppress(IndexError):
        return _idle.pop()
    worker = _Worker()
    try:
        worker.start()
    except RuntimeError as error:
        remedy = "lower concurrency, raise the limit of threads (ulimit -u, pids of the cgroup), or write async tools"
        raise InfraError(f"no thread for a tool: {error}", remedy=remedy) from None
    return worker


def _tell(loop: asyncio.AbstractEventLoop, done: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(done)


def _settle(ended: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if ended.done():  # cancelled
        return
    if isinstance(error, StopIteration):  # futures reject StopIteration
        error = RuntimeError(f"StopIteration: {error}")
    if error is None:
        ended.set_result(result)
    else:
        ended.set_exception(error)
