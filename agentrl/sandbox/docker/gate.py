"""What stands between us and a container engine that chokes: few creates at once, and none while it is down.

Our own, not aiolimiter and a breaker beside it: the rate is three lines, and all of it runs on one clock, which tests
replace, in whatever loop asks.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from agentrl.types.sandbox import SandboxUnavailable

_LOOK = "look at `docker info` and the engine's log"


class EngineChoked(SandboxUnavailable):
    """The engine did not answer in time, broke off, or reported a failure of its own (5xx)."""


class EngineAway(EngineChoked):
    """Nobody listens at the engine's address."""


class Gate:
    """Lets through `at_once` creates, at most `per_second`; a circuit breaker shuts it when the engine chokes.

    After `failures` in a row it is shut; then one goes through on trial, whose success opens it again. Only
    `EngineChoked` counts as a failure: a refused request shows an engine that is well.

    Args:
        shut_s: how long it is shut: at first, and at most; twice as long after each trial that fails.
        clock: seconds; replaced in tests.
    """

    def __init__(
        self,
        at_once: int = 8,
        per_second: float = 20.0,
        failures: int = 5,
        shut_s: tuple[float, float] = (1.0, 30.0),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._at_once, self._pause = at_once, 1.0 / per_second
        self._most_failures, self._shut_s, self._clock = failures, shut_s, clock
        self._failures, self._trials, self._opens_at, self._trial = 0, 0, 0.0, False
        self._cause, self._remedy = "", ""
        self._next = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._places = asyncio.Semaphore(at_once)

    @asynccontextmanager
    async def enter(self) -> AsyncIterator[None]:
        """Waits for a place, then for its moment.

        Raises:
            SandboxUnavailable: the gate is shut; names the failure that shut it.
        """
        if self._loop is not asyncio.get_running_loop():  # a semaphore belongs to one loop, a backend need not
            self._loop, self._places = asyncio.get_running_loop(), asyncio.Semaphore(self._at_once)
        self._check()
        async with self._places:
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
                first, longest = self._shut_s
                self._opens_at = self._clock() + min(longest, first * 2.0 ** min(self._trials, 16))
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
        left = self._opens_at - self._clock()
        if left > 0 or self._trial:
            raise SandboxUnavailable(
                f"the container engine failed {self._failures} times in a row; the last: {self._cause}",
                remedy=f"it is asked again in {max(left, 0):.0f} s; {self._remedy}",
            )
