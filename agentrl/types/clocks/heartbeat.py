"""Heartbeat of an event loop: measures its running time, without the time in which it was suspended.

A driver that was stopped (Ctrl-Z), a machine that was paused, or a loop without a processor must not cost an episode
its time. Time of an episode is therefore measured here.
"""

from __future__ import annotations

import asyncio
import logging
from weakref import WeakKeyDictionary

BEAT_S = 0.1
"""Seconds between two beats."""

MOST_S = 0.3
"""Maximum of seconds that count between two beats. The rest is time in which the loop was suspended."""

TOLD_S = 5.0
"""Longer suspensions of the loop are logged."""

_log = logging.getLogger(__name__)


class Heartbeat:
    """Counts the running time of a loop, while it has listeners.

    Attributes:
        loop: the loop.
        stood_s: seconds in which the loop was suspended so far.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.stood_s = 0.0
        self.loop = loop
        self._lived, self._last, self._listeners = 0.0, loop.time(), 0
        self._timer: asyncio.TimerHandle | None = None

    def lived(self) -> float:
        """Returns the seconds that the loop has run, from an arbitrary zero. They stop without listeners."""
        passed = self.loop.time() - self._last
        return self._lived + (passed if passed < MOST_S else MOST_S)

    def listen(self) -> None:
        """Adds a listener: counts until `ignore` was called as often as this."""
        self._listeners += 1
        if self._timer is None:
            self._last = self.loop.time()
            self._timer = self.loop.call_later(BEAT_S, self._beat)

    def ignore(self) -> None:
        """Removes a listener."""
        self._listeners -= 1
        if not self._listeners and self._timer is not None:
            self._count()
            self._timer.cancel()
            self._timer = None

    def _beat(self) -> None:
        self._count()
        self._timer = self.loop.call_later(BEAT_S, self._beat)

    def _count(self) -> None:
        now = self.loop.time()
        passed, self._last = now - self._last, now
        self._lived += min(passed, MOST_S)
        stood = max(0.0, passed - MOST_S)
        self.stood_s += stood
        if stood > TOLD_S:
            _log.warning("this process stood still for %.0f s: the deadlines of its episodes wait as long", stood)


_hearts: WeakKeyDictionary[asyncio.AbstractEventLoop, Heartbeat] = WeakKeyDictionary()
_latest: Heartbeat | None = None


def heartbeat() -> Heartbeat:
    """Returns the heartbeat of the running loop."""
    global _latest
    loop = asyncio.get_running_loop()
    heart = _latest  # read once: other threads have loops, too
    if heart is None or heart.loop is not loop:
        if (heart := _hearts.get(loop)) is None:
            heart = _hearts[loop] = Heartbeat(loop)
        _latest = heart
    return heart
