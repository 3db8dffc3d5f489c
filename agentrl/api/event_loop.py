"""Runs a coroutine from synchronous code, in a script or in a notebook."""

from __future__ import annotations

import asyncio
import contextvars
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import Any, TypeVar

from agentrl.types.stdlib import running_task

T = TypeVar("T")
_LOOK_S = 0.2


def run(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Runs `main()` to its end in a new event loop, like `asyncio.run`.

    If a loop runs already, as in a notebook, the new loop runs in its own thread, and the caller waits. Ctrl-C, or the
    stop button of a notebook, cancels the coroutine and waits for it. A second Ctrl-C does not wait.

    Raises:
        KeyboardInterrupt: Ctrl-C.
    """
    return _in_a_thread(main) if _a_loop_runs() else _in_this_thread(main)


def _a_loop_runs() -> bool:
    """Returns True if a loop runs in this thread.

    A separate function: errors raised in the `except` block would show the RuntimeError in their traceback.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def stop_signal() -> asyncio.Event:
    """An event that SIGINT or SIGTERM sets. Outside the main thread nothing sets it; there `run` cancels instead."""
    stop = asyncio.Event()
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


@contextmanager
def _interruptible() -> Iterator[None]:
    """Makes Ctrl-C raise KeyboardInterrupt. `asyncio.run` would cancel the task that waits here, without effect."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _in_this_thread(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    main_tasks: list[asyncio.Task[Any]] = []
    interrupts = 0

    async def attend() -> T:
        main_tasks.append(running_task())
        return await main()

    def interrupt(*_: object) -> None:
        # asyncio's own handler cancels in the midst of a callback, which may just have seen that a future is not done.
        nonlocal interrupts
        interrupts += 1
        if interrupts > 1 or not main_tasks:
            raise KeyboardInterrupt
        main_tasks[0].get_loop().call_soon_threadsafe(main_tasks[0].cancel)

    with _handling(interrupt):
        try:
            return asyncio.run(attend())
        except asyncio.CancelledError:
            if interrupts:
                raise KeyboardInterrupt from None
            raise


@contextmanager
def _handling(interrupt: Callable[..., None]) -> Iterator[None]:
    """Handles SIGINT, unless the program has installed a handler."""
    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _in_a_thread(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    begun: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[T]]] = Future()
    result: Future[T] = Future()

    async def attend() -> T:
        task = asyncio.ensure_future(main())
        begun.set_result((asyncio.get_running_loop(), task))
        return await task

    def work() -> None:
        try:
            result.set_result(asyncio.run(attend()))
        except BaseException as error:
            result.set_exception(error)

    thread = threading.Thread(target=contextvars.copy_context().run, args=[work], name="agentrl")
    with _interruptible():
        try:
            thread.start()
            while not result.done():  # a signal that arrives just before the wait does not end it
                wait([result], timeout=_LOOK_S)
            return result.result()
        except KeyboardInterrupt:
            loop, task = begun.result()
            loop.call_soon_threadsafe(task.cancel)
            raise
        finally:
            thread.join()
