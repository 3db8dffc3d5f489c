"""The pulse of an object in another process: whether that process runs.

A process that answers no ping for long is frozen (it was stopped, or its machine is gone): nobody else would notice.
What answers is a thread of its own, so an event loop may be busy for as long as its user code likes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from agentrl.types.clocks.deadline import Deadline

PING_S, SILENT_S = 10.0, 40.0
"""Seconds between two pings, and how long an answer may take, in which this process has lived."""


async def silence(ping: Callable[[], Awaitable[object]], silent_s: float | None = None) -> str:
    """Pings the other side until it does not answer. Returns what is said of it then.

    Args:
        ping: returns when the other side has answered.
        silent_s: how long an answer may take; default: `SILENT_S`.

    Raises:
        Exception: of the ping.
    """
    silent_s = silent_s or SILENT_S
    with suppress(TimeoutError):
        while True:
            await asyncio.sleep(PING_S)
            async with Deadline(silent_s):
                await ping()
    return f"did not answer for {silent_s:g} s, and was killed"
