"""A worker that is frozen is told from one that is busy, and from a driver that stood still."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

import pytest

from agentrl.distributed import process
from agentrl.distributed.handle import WorkerDied
from agentrl.distributed.process import PING_S, SILENT_S, ProcessLauncher, silence
from tests.standing import stand_still, standing
from tests.waiting import stop


class Other:
    """The other side, in simulated time: it answers pings, `late` seconds later."""

    def __init__(self, *late: float | None) -> None:
        self.heard, self.late, self.pings = asyncio.StreamReader(), [*late], 0

    def write(self, data: bytes) -> None:
        self.pings += 1
        late = self.late.pop(0)
        if late is not None:
            asyncio.get_running_loop().call_later(late, self.heard.feed_data, data)


async def silent_after(other: Other) -> float:
    loop = asyncio.get_running_loop()
    began, writer = loop.time(), other
    pulse: Any = writer
    await silence(other.heard, pulse)
    return loop.time() - began


def test_a_frozen_one_is_found_within_a_minute() -> None:
    async def program() -> float:
        return await silent_after(Other(None))

    assert standing(program()) == pytest.approx(PING_S + SILENT_S, abs=0.1)
    assert PING_S + SILENT_S < 60


def test_one_that_answers_late_is_busy() -> None:
    async def program() -> int:
        other = Other(0.0, SILENT_S - 1, 5.0, None)
        await silent_after(other)
        return other.pings

    assert standing(program()) == 4


def test_a_driver_that_stood_still_blames_nobody() -> None:
    async def program() -> int:
        other = Other(5.0, 5.0, None)

        async def stands() -> None:
            await asyncio.sleep(PING_S + 1)
            stand_still(10_000)

        task = asyncio.create_task(stands())
        await silent_after(other)
        await task
        return other.pings

    assert standing(program()) == 3


def test_one_that_hung_up_is_not_silent() -> None:
    async def program() -> None:
        other = Other(None)
        asyncio.get_running_loop().call_later(PING_S + 1, other.heard.feed_eof)
        with pytest.raises(EOFError):
            await silent_after(other)

    standing(program())


class Works:
    """Something in another process."""

    async def where(self) -> int:
        return os.getpid()

    async def blocks(self, seconds: float) -> str:
        time.sleep(seconds)
        return "done"

    async def waits(self) -> None:
        await asyncio.Event().wait()

    async def close(self) -> None: ...


@pytest.mark.slow
async def test_a_process_that_is_stopped_is_killed_and_its_calls_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "PING_S", 0.05)
    monkeypatch.setattr(process, "SILENT_S", 5.0)
    launcher = ProcessLauncher()
    handle = await launcher.spawn("frozen", Works)
    assert await handle.call("blocks", 0.5) == "done"
    waits = asyncio.create_task(handle.call("waits"))
    stop(await handle.call("where"))
    with pytest.raises(WorkerDied, match="did not answer for 5 s, and was killed"):
        await waits
    await handle.close()
    await launcher.close()
