"""Fails a test in which a coroutine of agentrl computed in the event loop for more than 200 ms of processor time.

from tests.stalls import no_stalls
__all__ = ["no_stalls"]  # in a conftest.py

How busy the machine is does not matter: time in which the loop had no processor does not count. What a test itself
computes does not count, either.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

import agentrl
from agentrl.rollout.faults.stalls import Stall, Watchdog

PACKAGE = str(Path(agentrl.__file__).parent)


def is_ours(stall: Stall) -> bool:
    """Whether a coroutine of agentrl was at work."""
    return any(frame.waits and frame.file.startswith(PACKAGE) for frame in stall.stack)


@pytest.fixture(autouse=True)
def no_stalls(request: pytest.FixtureRequest) -> Iterator[None]:
    found: list[Stall] = []
    run_forever = asyncio.BaseEventLoop.run_forever

    def watched(loop: asyncio.BaseEventLoop) -> None:
        watchdog = Watchdog(found.append)
        try:
            run_forever(loop)
        finally:
            watchdog.stop()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio.BaseEventLoop, "run_forever", watched)
        yield
    if ours := [str(stall) for stall in found if is_ours(stall)]:
        pytest.fail("the event loop stood still: " + "; ".join(ours), pytrace=False)
