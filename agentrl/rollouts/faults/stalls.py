"""A watchdog of the event loop: what computes in it for longer than 200 ms is named, logged and counted.

While one callback of the loop computes, all other episodes wait, and no time limit fires. A thread looks at the loop's
thread: which callback runs, and how much processor time it has taken. Time in which a busy machine does not run the
loop is none of it, so a stall is always the doing of the code that is named.

Loops of others (uvloop, which Ray takes where it is installed) show no callbacks: there a round of the loop is
one.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, ClassVar

STALL_S = 0.2
"""Processor time that a callback may take."""
_LOOK_S = 0.05  # between two looks
_FRAMES = 16  # of a stack that are kept, the innermost
_RUN_ONCE: CodeType = asyncio.BaseEventLoop._run_once.__code__  # type: ignore[attr-defined]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Frame:
    """Where a function is. `waits`: it is a coroutine's, which should have waited for what takes long."""

    file: str
    line: int
    name: str
    waits: bool

    def __str__(self) -> str:
        return f"{self.name} ({self.file}:{self.line})"


@dataclass(frozen=True)
class Stall:
    """A callback that computed for too long.

    Attributes:
        seconds: of processor time.
        stack: of the loop's thread while it did, the innermost frame first.
    """

    seconds: float
    stack: tuple[Frame, ...]

    def __str__(self) -> str:
        return f"{self.seconds:.1f} s in {' < '.join(map(str, self.stack[:6]))}"


class Watchdog:
    """Looks at the loop of the thread that makes it, until it is stopped.

    Args:
        told: is called with each stall, in the watchdog's thread.
    """

    def __init__(self, told: Callable[[Stall], None]) -> None:
        self._told = told
        self._loop = threading.get_ident()
        self._clock = time.pthread_getcpuclockid(self._loop)
        self._handle: Any = None
        self._rounds = _Rounds() if _is_foreign() else None
        self._since = self._last = time.clock_gettime(self._clock)
        self._lived = time.monotonic()  # without the time in which this machine did not run the watchdog
        self._stack: tuple[Frame, ...] = ()
        self._over = threading.Lock()
        self._over.acquire()
        self._thread = threading.Thread(target=self._watch, name="agentrl-watchdog", daemon=True)
        with suppress(RuntimeError):  # this machine starts no more threads: nothing is looked at
            self._thread.start()

    def stop(self) -> None:
        """Ends it. A stall under way is told."""
        if self._rounds is not None:
            self._rounds.stop()
        self._over.release()
        if self._thread.ident is not None:
            self._thread.join()
        self._end(time.clock_gettime(self._clock))

    def _watch(self) -> None:
        with suppress(OSError):  # the loop's thread has ended
            self._look()
            while not self._over.acquire(timeout=_LOOK_S):  # a lock: an Event does much of its own before it returns
                self._look()

    def _look(self) -> None:
        # Until the stack is taken nothing here waits: the loop's thread would go on meanwhile.
        used, frame = time.clock_gettime(self._clock), sys._current_frames().get(self._loop)
        handle = _running(frame) if self._rounds is None else self._rounds.number
        known = handle is self._handle
        long = handle is not None and used - (self._since if known else self._last) > STALL_S
        stack = tuple(_frames(frame)) if long and not (known and self._stack) else ()
        del frame
        lived = time.monotonic() - _starved_s()
        if not known:
            self._end(self._last)
            # A call of C that does not let go of the interpreter keeps this thread from looking: all since then is its.
            held = long and lived - self._lived > STALL_S
            self._handle, self._since = handle, self._last if held else used
            self._stack = stack if held else ()
        elif stack:
            self._stack = stack
        self._last, self._lived = used, lived

    def _end(self, used: float) -> None:
        """The callback that was looked at has ended."""
        if self._stack:
            self._told(Stall(used - self._since, self._stack))
        self._handle, self._stack = None, ()


class _Rounds:
    """Numbers rounds of the running loop, at most one between two looks. `number`: of what runs in this one."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._begin()

    def _begin(self) -> None:
        self.number = object()
        self._timer = self._loop.call_later(_LOOK_S, self._begin)

    def stop(self) -> None:
        self._timer.cancel()


def _is_foreign() -> bool:
    """Whether the loop that runs is not asyncio's own."""
    with suppress(RuntimeError):  # none runs yet: it is asyncio's
        return not isinstance(asyncio.get_running_loop(), asyncio.BaseEventLoop)
    return False


class Stalls:
    """Counts the stalls of a run, and logs each place once."""

    _seen: ClassVar[set[tuple[str, int]]] = set()

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count, self._seconds = 0, 0.0

    def add(self, stall: Stall) -> None:
        """One more."""
        place = stall.stack[0]
        with self._lock:
            self._count, self._seconds = self._count + 1, self._seconds + stall.seconds
            known = (place.file, place.line) in self._seen
            self._seen.add((place.file, place.line))
        if not known:
            _log.warning("the event loop stood still, and with it all episodes: %s", stall)

    def metrics(self) -> dict[str, float]:
        """Since the last call: `loop_stalls` and `loop_stall_s`; nothing if there was none."""
        with self._lock:
            found = {"loop_stalls": self._count, "loop_stall_s": self._seconds} if self._count else {}
            self._count, self._seconds = 0, 0.0
        return found


_watched: set[int] = set()  # threads


@contextmanager
def watched(told: Callable[[Stall], None]) -> Iterator[None]:
    """Tells stalls of the loop of this thread inside, unless somebody else is told them already."""
    thread = threading.get_ident()
    if thread in _watched:
        yield
        return
    _watched.add(thread)
    watchdog = Watchdog(told)
    try:
        yield
    finally:
        _watched.discard(thread)
        watchdog.stop()


def _running(frame: FrameType | None) -> Any:
    """The callback that a loop runs in a stack; None if it waits, or is no loop of asyncio's own."""
    while frame is not None and frame.f_code is not _RUN_ONCE:
        frame = frame.f_back
    if frame is None:
        return None
    names = frame.f_locals
    handle = names.get("handle")
    if type(names) is dict:
        names.clear()  # before Python 3.13 a copy that the frame would keep
    return handle


def _frames(frame: FrameType | None) -> Iterator[Frame]:
    for _ in range(_FRAMES):
        if frame is None or frame.f_code is _RUN_ONCE:
            return
        code = frame.f_code
        yield Frame(code.co_filename, frame.f_lineno, code.co_qualname, bool(code.co_flags & 0x80))
        frame = frame.f_back


def _starved_s() -> float:
    """Seconds for which this thread could have run and had no processor."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return time.monotonic()  # the system does not say: as if it always were, and nothing is concluded
