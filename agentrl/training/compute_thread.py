"""Thread of the trainer's computations: the event loop's, or a separate one."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol, TypeVar

import torch

from agentrl.rollouts.faults.stalls import meant

Result = TypeVar("Result")
Job = Callable[[], Any]

CLOSE_S = 15.0
"""Maximum time that closing waits for a running call."""


class Compute(Protocol):
    """Runs the trainer's calls, one at a time: with several ranks they must not overlap."""

    async def call(self, function: Callable[..., Result], *args: Any) -> Result:
        """Calls the function. Returns its result or raises its exception."""
        ...

    async def close(self) -> None:
        """Releases its resources."""
        ...


class Inline:
    """Runs calls in the event loop's thread, which blocks: no episode runs meanwhile."""

    async def call(self, function: Callable[..., Result], *args: Any) -> Result:
        """Calls the function. Returns its result or raises its exception."""
        with meant():
            return function(*args)

    async def close(self) -> None:
        """Does nothing."""


class ComputeThread:
    """Runs calls one after another in one thread, on the GPU of the first caller, and with torch's number of threads at
    construction. (Without this, a new thread takes over the number that an engine's thread set last.)

    The thread is a daemon, unlike asyncio's own threads: a collective whose other ranks are gone may never return, and
    must not keep the process from ending.
    """

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._ended = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._threads = torch.get_num_threads()

    async def call(self, function: Callable[..., Result], *args: Any) -> Result:
        """Calls the function. Returns its result or raises its exception."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            on_gpu = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
            device = torch.cuda.current_device() if on_gpu else None
            threading.Thread(target=self._work, args=[self._loop, device], name="agentrl-trainer", daemon=True).start()
        future: asyncio.Future[Result] = self._loop.create_future()
        self._jobs.put(lambda: self._answer(future, function, args))
        return await future

    async def close(self) -> None:
        """Ends the thread after its last call. Waits for that, but not forever: the call may hang."""
        if self._loop is not None:
            self.dismiss()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), CLOSE_S)

    def dismiss(self) -> None:
        """Ends the thread after its last call, without waiting."""
        self._jobs.put(None)

    def _work(self, loop: asyncio.AbstractEventLoop, device: int | None) -> None:
        if device is not None:  # by default every thread starts on the first GPU
            torch.cuda.set_device(device)
        torch.set_num_threads(self._threads)
        while (job := self._jobs.get()) is not None:
            job()
            del job  # it holds the model
        _call_in(loop, self._ended.set)

    def _answer(self, future: asyncio.Future[Result], function: Callable[..., Result], args: tuple[Any, ...]) -> None:
        try:
            result = function(*args)
        except BaseException as error:
            _call_in(future.get_loop(), _settle, future.set_exception, future, error)
        else:
            _call_in(future.get_loop(), _settle, future.set_result, future, result)


def compute_of(size: int, *, beside: bool = False) -> Compute:
    """Chooses the thread of a training's computations.

    Args:
        size: number of trainer ranks. With several ranks it is always a thread: the event loop can then notice that a
            rank died, while a collective over NCCL would wait for it.
        beside: the event loop must keep running meanwhile.
    """
    return ComputeThread() if beside or size > 1 else Inline()


async def in_thread(function: Callable[[], Result]) -> Result:
    """Runs a function in a new thread. If the call is cancelled, the thread is not awaited."""
    thread = ComputeThread()
    try:
        return await thread.call(function)
    finally:
        thread.dismiss()


def _call_in(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *args: Any) -> None:
    """Calls a function in the event loop's thread, unless the loop is closed: then the result is not needed."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(function, *args)


def _settle(answer: Callable[[Any], None], future: asyncio.Future[Any], value: Any) -> None:
    if not future.done():  # Cancelled meanwhile.
        answer(value)
