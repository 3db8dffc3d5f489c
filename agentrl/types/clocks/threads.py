"""Threads of their own for calls that block, so that the event loop goes on."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import os
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from agentrl.types.errors import InfraError

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
