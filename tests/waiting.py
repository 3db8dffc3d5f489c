"""Waits for what no event tells: another process has ended, a file is there, a line was logged.

Neither wait has a deadline of its own. A condition that never comes true hangs until pytest-timeout ends the test and
shows where it hung, so a busy machine makes a test slower and never red.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

POLL_S = 0.01


def until(condition: Callable[[], object]) -> None:
    """Returns when the condition is true."""
    while not condition():
        time.sleep(POLL_S)


async def until_async(condition: Callable[[], object]) -> None:
    """Returns when the condition is true. The event loop runs meanwhile."""
    while not condition():
        await asyncio.sleep(POLL_S)
