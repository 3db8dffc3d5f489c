"""An event loop in simulated time that can be made to stand still: the process was stopped, or had no processor."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from agentrl.simulate.clock import SimulatedLoop

T = TypeVar("T")


class StandingLoop(SimulatedLoop):
    """Its time goes on as fast as its programs wait."""

    def stand_still(self, seconds: float) -> None:
        """Lets time pass in which the loop does nothing."""
        self._jump.now += seconds


def stand_still(seconds: float) -> None:
    """Lets the running loop stand still."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, StandingLoop)
    loop.stand_still(seconds)


def standing(program: Coroutine[Any, Any, T]) -> T:
    """Runs a program on such a loop."""
    with asyncio.Runner(loop_factory=StandingLoop) as runner:
        return runner.run(program)
