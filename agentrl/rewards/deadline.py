"""Deadlines of scoring, which stand still while what is scored waits for its turn."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar


class Deadline:
    """A limit of wall time around a block.

    Attributes:
        seconds: the limit.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._timeout = asyncio.timeout(None)
        self._stops, self._left = 0, seconds

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Runs it for a block; raises TimeoutError when it has passed."""
        before = _RUNNING.set((*_RUNNING.get(), self))
        try:
            async with self._timeout:
                self._timeout.reschedule(asyncio.get_running_loop().time() + self.seconds)
                yield
        finally:
            _RUNNING.reset(before)

    @property
    def expired(self) -> bool:
        """Whether it has passed."""
        return self._timeout.expired()

    @property
    def left(self) -> float:
        """Seconds until it passes."""
        when = self._timeout.when()
        return self._left if when is None else max(0.0, when - asyncio.get_running_loop().time())

    def stop(self) -> None:
        """Lets it stand still; stops add up."""
        self._stops += 1
        if self._stops == 1 and not self.expired:
            self._left = self.left
            self._timeout.reschedule(None)

    def go_on(self) -> None:
        """Ends a stop."""
        self._stops -= 1
        if not self._stops and not self.expired:
            self._timeout.reschedule(asyncio.get_running_loop().time() + self._left)


_RUNNING: ContextVar[tuple[Deadline, ...]] = ContextVar("deadlines of scoring", default=())


def allowed_s() -> float | None:
    """The seconds of the outermost deadline, which is `limits.score_s`; None outside of any."""
    running = _RUNNING.get()
    return running[0].seconds if running else None


def left_s() -> float:
    """Seconds until the first of the deadlines passes."""
    return min((deadline.left for deadline in _RUNNING.get()), default=math.inf)


@contextmanager
def uncounted() -> Iterator[None]:
    """Stops all deadlines that run around this block."""
    running = _RUNNING.get()
    for deadline in running:
        deadline.stop()
    try:
        yield
    finally:
        for deadline in running:
            deadline.go_on()
