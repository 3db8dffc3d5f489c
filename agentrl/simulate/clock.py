"""Simulated time for asyncio programs: they run as fast as they compute.

This replaces SimPy, whose processes are generators of SimPy events. Here the same coroutine runs in simulated and in
real time, so that the simulator can be checked against an engine that really waits (`benchmarks/simulator.py`).
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Jump(selectors.SelectSelector):
    """A selector that advances the clock to the next timer instead of sleeping."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Advances the clock by `timeout`; there are never events."""
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
        RuntimeError: the program waits for something that can never happen.
    """
    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        return runner.run(program)
