"""A clock that a test sets forward: a deadline passes when the test says so, and never because the machine is slow."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from functools import partial
from weakref import WeakSet

import pytest

from agentrl.types.clocks import heartbeat
from tests.meanwhile import when


class Clock:
    """The clock of the standard library and of event loops in this process, some seconds ahead.

    Deadlines are far away when they are set. A test sets the clock forward once all has happened that comes before.
    Loops have lived in the seconds that it sets forward.

    Args:
        still: it goes on only when it is set forward. It starts with whole seconds: sums of such are exact.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, still: bool = False) -> None:
        self.ahead = 0.0
        self._loops: WeakSet[asyncio.AbstractEventLoop] = WeakSet()
        with suppress(RuntimeError):  # none runs
            self._loops.add(asyncio.get_running_loop())
        run = asyncio.BaseEventLoop.run_forever

        def run_forever(loop: asyncio.BaseEventLoop) -> None:
            self._loops.add(loop)
            run(loop)

        for name in ("monotonic", "perf_counter"):
            real = getattr(time, name)
            monkeypatch.setattr(time, name, partial(self._told, partial(float, round(real())) if still else real))
        monkeypatch.setattr(asyncio.BaseEventLoop, "run_forever", run_forever)
        monkeypatch.setattr(heartbeat, "MOST_S", math.inf)

    def _told(self, real: Callable[[], float]) -> float:
        return real() + self.ahead

    def forward(self, seconds: float) -> None:
        """Sets it forward. Deadlines that lie in these seconds pass at once."""
        self.ahead += seconds
        for loop in [*self._loops]:
            with suppress(RuntimeError):  # it is closed
                loop.call_soon_threadsafe(lambda: None)  # it may sleep until a deadline that has passed now

    def forward_when(self, condition: Callable[[], object], seconds: float) -> AbstractContextManager[None]:
        """Sets it forward as soon as the condition is true, while the block runs."""
        return when(condition, lambda: self.forward(seconds))
