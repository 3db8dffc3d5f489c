"""Where the trainer computes: in the event loop's thread, or in one thread beside it."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol, TypeVar

import torch

Result = TypeVar("Result")
Job = Callable[[], Any]

CLOSE_S = 15.0
"""So long closing waits for a call that is under way."""


class Compute(Protocol):
    """Does the trainer's work. All of it goes through one: with several ranks its parts must not mix."""

    async def call(self, function: Callable[..., Result], *args: Any) -> Result:
        """What the function returns, or raises."""
        ...

    async def close(self) -> None:
        """Frees what it holds."""
        ...


class Inline:
    """Computes in the event loop's thread, which waits."""

    async def call(self, function: Callable[..., Result], *args: Any) -> Result:
        """What the function returns, or raises."""
        return function(*args)

    async def close(self) -> None:
        """Holds nothing."""


class ComputeThread:
    """Does what it is asked, call after call, on the GPU of the thread that asks first, and with the number of threads
    that torch has where this is made. (By itself a thread takes over the number that an engine's thread set last.)

    A daemon, unlike asyncio's own threads: a collective whose other ranks are gone may never return, and must not keep
    the process from ending.
    """

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._ended = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._threads = torch.get_num_threads()

    async def call(self, function: Callable[..., Result], *args: Any) -> Result:
        """What the function returns, or raises."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            on_gpu = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
            device = torch.cuda.current_device() if on_gpu else None
            threading.Thread(target=self._work, args=[device], name="agentrl-trainer", daemon=True).start()
        future: asyncio.Future[Result] = self._loop.create_future()
        self._jobs.put(lambda: self._answer(future, function, args))
        return await future

    async def close(self) -> None:
        """Ends the thread, and waits until it has done what it was asked; not for ever, since it may hang."""
        if self._loop is not None:
            self.dismiss()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), CLOSE_S)

    def dismiss(self) -> None:
        """Ends the thread when it has done what it was asked, without waiting."""
        self._jobs.put(None)

    def _work(self, device: int | None) -> None:
        if device is not None:  # by itself every thread begins at the first
            torch.cuda.set_device(device)
        torch.set_num_threads(self._threads)
        while (job := self._jobs.get()) is not None:
            job()
            del job  # it holds the model
        self._tell(self._ended.set)

    def _answer(self, future: asyncio.Future[Result], function: Callable[..., Result], args: tuple[Any, ...]) -> None:
        try:
            result = function(*args)
        except BaseException as error:
            self._tell(_settle, future.set_exception, future, error)
        else:
            self._tell(_settle, future.set_result, future, result)

    def _tell(self, function: Callable[..., None], *args: Any) -> None:
        assert self._loop is not None
        with suppress(RuntimeError):  # The loop was closed: nobody waits.
            self._loop.call_soon_threadsafe(function, *args)


def compute_of(size: int, *, beside: bool = False) -> Compute:
    """Where a training computes.

    Args:
        size: ranks that train. With several it is always a thread: the event loop so sees that a placed rank died, for
            which a collective over NCCL would wait.
        beside: whether the event loop is to go on meanwhile.
    """
    return ComputeThread() if beside or size > 1 else Inline()


async def in_thread(function: Callable[[], Result]) -> Result:
    """What the function returns, or raises, in a thread of its own. If the call is cancelled, nobody waits for it."""
    thread = ComputeThread()
    try:
        return await thread.call(function)
    finally:
        thread.dismiss()


def _settle(answer: Callable[[Any], None], future: asyncio.Future[Any], value: Any) -> None:
    if not future.done():  # Cancelled meanwhile.
        answer(value)
