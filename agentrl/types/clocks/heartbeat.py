"""The heartbeat of an event loop: how long the loop has lived, without the time in which it stood still.

A driver that was stopped (Ctrl-Z), a machine that was paused, and a loop that had no processor must not cost an episode
its time. Whoever measures time for an episode therefore measures it here.
"""

from __future__ import annotations

import asyncio
import logging
from weakref import WeakKeyDictionary

BEAT_S = 0.1
"""Seconds between two beats."""

MOST_S = 0.3
"""The most that counts between two beats. The rest is time in which the loop stood still."""

TOLD_S = 5.0
"""A loop that stood still for longer is worth a line in the log."""

_log = logging.getLogger(__name__)


class Heartbeat:
    """Counts the time that a loop lives, while somebody listens.

    Attributes:
        stood_s: seconds in which the loop stood still so far.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.stood_s = 0.0
        self._loop = loop
        self._lived, self._last, self._listeners = 0.0, loop.time(), 0
        self._timer: asyncio.TimerHandle | None = None

    def lived(self) -> float:
        """Seconds that the loop has lived, on a scale of its own. It stands still while nobody listens."""
        return self._lived + min(self._loop.time() - self._last, MOST_S)

    def listen(self) -> None:
        """Beats from now on, until `ignore` was called as often as this."""
        self._listeners += 1
        if self._timer is None:
            self._last = self._loop.time()
            self._timer = self._loop.call_later(BEAT_S, self._beat)

    def ignore(self) -> None:
        """One listener less."""
        self._listeners -= 1
        if not self._listeners and self._timer is not None:
            self._count()
            self._timer.cancel()
            self._timer = None

    def _beat(self) -> None:
        self._count()
        self._timer = self._loop.call_later(BEAT_S, self._beat)

    def _count(self) -> None:
        now = self._loop.time()
        passed, self._last = now - self._last, now
        self._lived += min(passed, MOST_S)
        stood = max(0.0, passed - MOST_S)
        self.stood_s += stood
        if stood > TOLD_S:
            _log.warning("this process stood still for %.0f s: the deadlines of its episodes wait as long", stood)


_hearts: WeakKeyDictionary[asyncio.AbstractEventLoop, Heartbeat] = WeakKeyDictionary()


def heartbeat() -> Heartbeat:
    """The heartbeat of the running loop."""
    loop = asyncio.get_running_loop()
    if (heart := _hearts.get(loop)) is None:
        heart = _hearts[loop] = Heartbeat(loop)
    return heart
