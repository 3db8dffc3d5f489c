"""The clock of an attempt, against which it has `limits.episode_s`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class Clock:
    """The wall of one attempt, which stands still while its forks go on.

    Attributes:
        wall: None unless somebody drives the session.
    """

    def __init__(self) -> None:
        self.wall: asyncio.Timeout | None = None
        self._stops, self._left = 0, 0.0

    @property
    def expired(self) -> bool:
        return self.wall is not None and self.wall.expired()

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stops it; blocks may overlap."""
        self._move(+1)
        try:
            yield
        finally:
            self._move(-1)

    def _move(self, by: int) -> None:
        now, before = asyncio.get_running_loop().time(), self._stops
        self._stops += by
        if self.wall is None or self.wall.expired():
            return
        if not before:
            self._left = (self.wall.when() or now) - now
            self.wall.reschedule(None)
        elif not self._stops:
            self.wall.reschedule(now + self._left)
