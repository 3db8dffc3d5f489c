"""Deadlines of an episode, in the running time of the event loop (`heartbeat.py`)."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from agentrl.types.clocks.heartbeat import Heartbeat, heartbeat

_EARLY_S = 1e-4
"""Timers of the loop may fire this much too early."""


class _Countdown(ABC):
    """Running time of the loop that is left, in seconds. It can be stopped and continued.

    A stopped countdown holds no reference to itself, so that a turn leaves no garbage to collect.
    """

    def __init__(self, seconds: float) -> None:
        self._left = seconds
        self._heart: Heartbeat | None = None
        self._until = 0.0
        self._handle: asyncio.TimerHandle | None = None

    @abstractmethod
    def _ended(self) -> None:
        """Acts when no time is left."""

    def _start(self) -> None:
        if self._heart is None:
            self._heart = heart = heartbeat()
            heart.listen()
            self._until = heart.lived() + self._left
            self._handle = heart.loop.call_later(self._left, self._due)

    def _stop(self) -> None:
        if self._heart is None or self._handle is None:
            return
        self._left = self._until - self._heart.lived()
        self._handle.cancel()
        self._heart.ignore()
        self._heart = self._handle = None

    def _due(self) -> None:
        assert self._heart is not None
        left = self._until - self._heart.lived()
        if left > _EARLY_S:  # the loop was suspended meanwhile
            self._handle = self._heart.loop.call_later(left, self._due)
            return
        self._stop()
        self._ended()


class Timer(_Countdown):
    """Calls a function once, after the loop has run for some seconds. It can be stopped and continued."""

    def __init__(self, seconds: float, then: Callable[[], None]) -> None:
        super().__init__(seconds)
        self._then = then

    def go(self) -> None:
        """Starts or continues."""
        self._start()

    def stop(self) -> None:
        """Pauses."""
        self._stop()

    def _ended(self) -> None:
        self._then()


class Deadline(_Countdown):
    """Ends a block with `TimeoutError`, as `asyncio.timeout` does, after the loop has run for so long in it.

    Can be entered once.

    Args:
        seconds: maximum duration of the block.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self._task: asyncio.Task[Any] | None = None  # inside the block
        self._cancelling = self._stops = 0
        self._expired = False

    def expired(self) -> bool:
        """Returns True if it has passed, so that the TimeoutError comes from it."""
        return self._expired

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Pauses it inside the block; blocks may overlap."""
        self._stops += 1
        self._stop()
        try:
            yield
        finally:
            self._stops -= 1
            self._go()

    async def __aenter__(self) -> Self:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a Deadline ends the work of a task, and no task runs here")
        self._task, self._cancelling = task, task.cancelling()
        self._go()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        task, self._task = self._task, None
        self._stop()
        # Another cancellation of the task, of an outer block or from outside, goes on.
        alone = self._expired and task is not None and task.uncancel() <= self._cancelling
        if alone and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def _go(self) -> None:
        if self._task is not None and not self._stops and not self._expired:
            self._start()

    def _ended(self) -> None:
        self._expired = True
        if self._task is not None:
            self._task.cancel()
