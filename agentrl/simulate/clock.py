"""A clock that jumps: asyncio programs run in simulated time, as fast as they compute.

Our own, not SimPy: the same coroutine runs in simulated and in real time, which is how the simulator is checked
against an engine that really waits (`benchmarks/simulator.py`). SimPy's processes are generators of its own events.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Jump(selectors.SelectSelector):
    """Where a loop would sleep until its next timer, moves the clock there instead."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Nothing ever happens outside: there is only time."""
        if timeout is None:
            raise RuntimeError("the simulated program waits for what will never happen")
        self.now += max(timeout, 0.0)
        return []


class SimulatedLoop(asyncio.SelectorEventLoop):
    """An event loop whose `time()` is simulated, from 0 on."""

    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)

    def time(self) -> float:
        """Simulated seconds."""
        return self._jump.now


def simulated(program: Coroutine[Any, Any, T]) -> T:
    """Runs a program that only sleeps and computes; sleeping takes no time.

    Raises:
        RuntimeError: it waits for something that nothing in it will bring about.
    """
    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        return runner.run(program)
