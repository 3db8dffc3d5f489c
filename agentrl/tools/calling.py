"""Calls of user code that may be `async def` or not: what is not runs in a thread."""

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


GIVE_WAY_S = 0.01
_gave_way = 0.0


async def give_way() -> None:
    """Lets other episodes and time limits run, once in 10 ms: for calls that may never wait for anything.

    A wait for a thread counts as well.
    """
    global _gave_way
    if time.monotonic() - _gave_way > GIVE_WAY_S:
        await asyncio.sleep(0)
        _gave_way = time.monotonic()


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

    A thread cannot be ended: after a cancellation it goes on, and its result is dropped. A call gets an idle daemon
    thread, or a new one if there is none, so that calls which hang keep neither other episodes waiting nor the process
    alive.

    Args:
        turn: held while the call runs. A call that is cancelled before its turn does not run.

    Raises:
        InfraError: the system starts no more threads.
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
    """A thread that runs one call after another, and ends when none has come for a while."""

    def __init__(self) -> None:
        super().__init__(name="agentrl-tool", daemon=True)
        self.calls: queue.SimpleQueue[Callable[[], Callable[[], None]]] = queue.SimpleQueue()

    def run(self) -> None:
        while True:
            try:
                tell = self.calls.get(timeout=IDLE_S)()
            except queue.Empty:
                with contextlib.suppress(ValueError):  # not idle any more: a call is on its way
                    _idle.remove(self)
                    return
                continue
            _idle.append(self)  # before its result is known: the call that follows it finds this thread
            tell()
            del tell  # an idle thread holds nothing of the call


IDLE_S = 10.0
_idle: list[_Worker] = []
os.register_at_fork(after_in_child=_idle.clear)  # a fork has no threads


def _worker() -> _Worker:
    """A thread that waits for a call: to start one costs more than most calls of tools do."""
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
    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
        loop.call_soon_threadsafe(done)


def _settle(ended: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if ended.done():  # cancelled: nobody waits
        return
    if isinstance(error, StopIteration):  # a future does not take it
        error = RuntimeError(f"StopIteration: {error}")
    if error is None:
        ended.set_result(result)
    else:
        ended.set_exception(error)
