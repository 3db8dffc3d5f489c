"""Protects a container engine from overload: a rate limit on creates, and a circuit breaker.

Our own, not aiolimiter and a breaker library: the rate is three lines, and all of it runs on one clock, which tests
replace, in any event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from agentrl.types.sandbox import SandboxUnavailable

_LOOK = "look at `docker info` and the engine's log"


class EngineChoked(SandboxUnavailable):
    """The engine did not answer in time, closed the connection, or reported an internal failure (5xx)."""


class EngineAway(EngineChoked):
    """The failure of an engine at whose address nothing listens."""


class CreateLimiter:
    """Admits `at_once` concurrent creates, `per_second` at most; a circuit breaker refuses all while the engine fails.

    The circuit opens after `failures` consecutive failures. After a while one create is admitted on trial; its success
    closes the circuit. Only `EngineChoked` counts as a failure: a refused request shows a healthy engine.

    Args:
        open_s: seconds for which the circuit stays open: at first, and at most. Doubles with each failed trial.
        clock: in seconds; tests replace it.
    """

    def __init__(
        self,
        at_once: int = 8,
        per_second: float = 20.0,
        failures: int = 5,
        open_s: tuple[float, float] = (1.0, 30.0),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._at_once, self._pause = at_once, 1.0 / per_second
        self._most_failures, self._open_s, self._clock = failures, open_s, clock
        self._failures, self._trials, self._retry_at, self._trial = 0, 0, 0.0, False
        self._cause, self._remedy = "", ""
        self._next = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._slots = asyncio.Semaphore(at_once)

    @asynccontextmanager
    async def enter(self) -> AsyncIterator[None]:
        """Waits until the create is admitted.

        Raises:
            SandboxUnavailable: the circuit is open; the message names the failure that opened it.
        """
        if self._loop is not asyncio.get_running_loop():  # a semaphore belongs to one loop, a backend need not
            self._loop, self._slots = asyncio.get_running_loop(), asyncio.Semaphore(self._at_once)
        self._check()
        async with self._slots:
            now = self._clock()
            moment = max(now, self._next)
            self._next = moment + self._pause
            await asyncio.sleep(moment - now)
            self._check()
            trial = self._trial = self._failures >= self._most_failures
            try:
                yield
                self._failures = 0
            except EngineChoked as error:
                self._failures += 1
                self._trials = self._trials + 1 if trial else 0
                first, longest = self._open_s
                self._retry_at = self._clock() + min(longest, first * 2.0 ** min(self._trials, 16))
                self._cause, self._remedy = error.message, error.remedy or _LOOK
                raise
            except Exception:
                self._failures = 0
                raise
            finally:
                if trial:
                    self._trial = False

    def _check(self) -> None:
        if self._failures < self._most_failures:
            return
        left = self._retry_at - self._clock()
        if left > 0 or self._trial:
            raise SandboxUnavailable(
                f"the container engine failed {self._failures} times in a row; the last: {self._cause}",
                remedy=f"it is asked again in {max(left, 0):.0f} s; {self._remedy}",
            )
