"""Watchdog of the event loop: reports, logs and counts callbacks that compute for longer than 200 ms.

While one callback of the loop computes, all other episodes wait, and no time limit fires. A thread asks the loop for
a sign of life. While that is late, the thread samples the loop's thread: the running callback, and its processor time.
Time in which a busy machine does not run the loop does not count.

A stall is caused by the reported code, with one exception: one call of C may hold the interpreter lock throughout, so
that the thread sees only what ran when it got the lock. The report then says "in or just before".

Frames of the loop's thread are read only while the loop is late: reading those of a running thread can crash
CPython 3.11.

Other event loops (uvloop, used by Ray if installed) show no callbacks: there a round of the loop counts as
one.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any, ClassVar, Self

STALL_S = 0.2
"""Maximum processor time of a callback."""
_LOOK_S = 0.05  # between two samples
_LATE_S = _LOOK_S / 2  # of processor time without a sign of life
_IDLE_S = 0.001  # of processor time between two samples: nothing ran that could stall
_FRAMES = 16  # maximum of recorded frames of a stack, the innermost
_RUN_ONCE: CodeType = asyncio.BaseEventLoop._run_once.__code__  # type: ignore[attr-defined]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StackFrame:
    """Location of a function. `waits`: it is a coroutine, which should have awaited slow work."""

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
        stack: of the loop's thread during the stall, the innermost frame first.
        inferred: no sample fell into the stall, as the interpreter lock was held: `stack` is the first seen after it,
            of the same callback or of one that ran soon after.
    """

    seconds: float
    stack: tuple[StackFrame, ...]
    inferred: bool = False

    def __str__(self) -> str:
        where = "in or just before" if self.inferred else "in"
        return f"{self.seconds:.1f} s {where} {' < '.join(map(str, self.stack[:6]))}"


class Watchdog:
    """Watches a loop of this thread until it is stopped.

    Args:
        loop: it runs, or this thread will run it.
        told: called with each stall, in the watchdog's thread.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, told: Callable[[Stall], None]) -> None:
        self._told = told
        self._loop, self._thread_id = loop, threading.get_ident()
        self._clock = time.pthread_getcpuclockid(self._thread_id)
        _meant.pop(self._thread_id, None)  # of a thread that had this number before
        self._handle: Any = None
        self._asked: object | None = None  # a sign of life that has not come
        self._asked_at = 0.0
        self._since = self._last = time.clock_gettime(self._clock)
        self._lived = time.monotonic()  # without the time in which this machine did not run the watchdog
        self._stack: tuple[StackFrame, ...] = ()
        self._inferred = False
        self._over = threading.Lock()
        self._over.acquire()
        self._thread = threading.Thread(target=self._watch, name="agentrl-watchdog", daemon=True)
        with suppress(RuntimeError):  # this machine starts no more threads: the loop is not watched
            self._thread.start()

    def stop(self) -> None:
        """Stops it. A stall under way is reported."""
        self._over.release()
        if self._thread.ident is not None:
            self._thread.join()
        self._end(time.clock_gettime(self._clock))

    def _watch(self) -> None:
        with suppress(OSError), _Starvation() as self._starvation:  # OSError: the loop's thread has ended
            self._look()
            while not self._over.acquire(timeout=_LOOK_S):  # a lock: an Event has more overhead
                self._look()

    def _look(self) -> None:
        used = time.clock_gettime(self._clock)
        asked = self._asked
        late = used - self._last > STALL_S if asked is None else used - self._asked_at > _LATE_S
        # Must not wait before the stack is taken: the loop's thread would continue.
        frame = sys._current_frames().get(self._thread_id) if late else None
        until = _meant.get(self._thread_id, 0.0)
        if until == math.inf:
            self._end(self._last)
            self._last, self._lived = used, time.monotonic() - self._starvation.seconds()
            return
        self._since, self._last = max(self._since, until), max(self._last, until)
        own = isinstance(self._loop, asyncio.BaseEventLoop)
        handle = _running(frame) if own else (asked or object()) if late else None
        known = handle is self._handle
        long = handle is not None and used - (self._since if known else self._last) > STALL_S
        stack = tuple(_frames(frame)) if long and not (known and self._stack) else ()
        del frame
        lived = time.monotonic() - self._starvation.seconds()
        if not known:
            self._end(self._last)
            # A C call that holds the interpreter lock blocks this thread, so all time since the last look is its own.
            # Another thread may have got the lock first: then the loop has gone on to the next callback.
            held = long and lived - self._lived > STALL_S
            self._handle, self._since = handle, self._last if held else used
            self._stack, self._inferred = (stack, True) if held else ((), False)
        elif stack:
            self._stack = stack
        if self._asked is None and used - self._last > _IDLE_S:
            self._ask(used)
        self._last, self._lived = used, lived

    def _ask(self, used: float) -> None:
        """Asks the loop for a sign of life: a callback of the next round."""
        self._asked, self._asked_at = object(), used
        with suppress(RuntimeError):  # it is closed
            self._loop.call_soon_threadsafe(self._answer)

    def _answer(self) -> None:
        self._asked = None

    def _end(self, used: float) -> None:
        """Reports the watched callback, which has ended, if it stalled."""
        if self._stack:
            self._told(Stall(used - self._since, self._stack, self._inferred))
        self._handle, self._stack, self._inferred = None, (), False


_meant: dict[int, float] = {}
"""By thread, the processor time until which it was meant to compute: infinite while it is."""


@contextmanager
def meant() -> Iterator[None]:
    """Disables the watchdog of this thread inside the block: long computations there block no episode."""
    thread = threading.get_ident()
    _meant[thread] = math.inf
    try:
        yield
    finally:
        _meant[thread] = time.thread_time()


class Stalls:
    """Counts the stalls of a run, and logs each place once."""

    _seen: ClassVar[set[tuple[str, int]]] = set()

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count, self._seconds = 0, 0.0

    def add(self, stall: Stall) -> None:
        """Adds a stall."""
        place = stall.stack[0]
        with self._lock:
            self._count, self._seconds = self._count + 1, self._seconds + stall.seconds
            known = (place.file, place.line) in self._seen
            self._seen.add((place.file, place.line))
        if not known:
            _log.warning("the event loop stood still, and with it all episodes: %s", stall)

    def metrics(self) -> dict[str, float]:
        """Returns the stalls since the last call: `loop_stalls` and `loop_stall_s`; empty if none."""
        with self._lock:
            found = {"loop_stalls": self._count, "loop_stall_s": self._seconds} if self._count else {}
            self._count, self._seconds = 0, 0.0
        return found


_watched: set[int] = set()  # threads


@contextmanager
def watched(told: Callable[[Stall], None]) -> Iterator[None]:
    """Reports stalls of the loop of this thread inside the block, unless it is watched already."""
    thread = threading.get_ident()
    if thread in _watched:
        yield
        return
    _watched.add(thread)
    watchdog = Watchdog(asyncio.get_running_loop(), told)
    try:
        yield
    finally:
        _watched.discard(thread)
        watchdog.stop()


def _running(frame: FrameType | None) -> Any:
    """Returns the callback that a loop runs in a stack; None if it waits, or is not asyncio's own."""
    while frame is not None and frame.f_code is not _RUN_ONCE:
        frame = frame.f_back
    if frame is None:
        return None
    names = frame.f_locals
    handle = names.get("handle")
    if type(names) is dict:
        names.clear()  # before Python 3.13 a copy that the frame would hold
    return handle


def _frames(frame: FrameType | None) -> Iterator[StackFrame]:
    for _ in range(_FRAMES):
        if frame is None or frame.f_code is _RUN_ONCE:
            return
        code = frame.f_code
        yield StackFrame(code.co_filename, frame.f_lineno, code.co_qualname, bool(code.co_flags & 0x80))
        frame = frame.f_back


class _Starvation:
    """Seconds for which the thread that enters this was runnable without a processor."""

    def __enter__(self) -> Self:
        try:
            self._file = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        except OSError:
            self._file = -1
        return self

    def __exit__(self, *_: object) -> None:
        if self._file >= 0:
            os.close(self._file)

    def seconds(self) -> float:
        try:
            return int(os.pread(self._file, 100, 0).split()[1]) / 1e9
        except (OSError, ValueError, IndexError):
            return time.monotonic()  # unknown: as if always starved, so that stalls are not inferred
