"""Whether the event loop goes on meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


@asynccontextmanager
async def beating(most_s: float = 5.0) -> AsyncIterator[None]:
    """Fails if the loop stood still for longer than a busy machine explains: what blocks it here takes far longer."""
    longest = 0.0

    async def beat() -> None:
        nonlocal longest
        while True:
            since = time.monotonic()
            await asyncio.sleep(0.01)
            longest = max(longest, time.monotonic() - since)

    task = asyncio.create_task(beat())
    await asyncio.sleep(0)
    try:
        yield
        await asyncio.sleep(0.02)
    finally:
        task.cancel()
    assert longest < most_s, f"the event loop stood still for {longest:.1f} s"
