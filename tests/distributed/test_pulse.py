"""A worker that is frozen is told from one that is busy, and from a driver that stood still."""

from __future__ import annotations

import asyncio
import os
import time

import pytest

from agentrl.distributed import pulse
from agentrl.distributed.handle import WorkerDied
from agentrl.distributed.process import ProcessLauncher
from agentrl.distributed.pulse import PING_S, SILENT_S, silence
from tests.standing import stand_still, standing
from tests.waiting import stop


class Other:
    """The other side, in simulated time: it answers pings, `late` seconds later."""

    def __init__(self, *late: float | None) -> None:
        self.late, self.pings = [*late], 0

    async def ping(self) -> None:
        self.pings += 1
        late = self.late.pop(0)
        await (asyncio.sleep(late) if late is not None else asyncio.Event().wait())


async def silent_after(other: Other) -> float:
    loop = asyncio.get_running_loop()
    began = loop.time()
    assert await silence(other.ping) == f"did not answer for {SILENT_S:g} s, and was killed"
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
        heard = asyncio.StreamReader()
        asyncio.get_running_loop().call_later(PING_S + 1, heard.feed_eof)
        with pytest.raises(EOFError):
            await silence(lambda: heard.readexactly(1))

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
    monkeypatch.setattr(pulse, "PING_S", 0.05)
    monkeypatch.setattr(pulse, "SILENT_S", 5.0)
    launcher = ProcessLauncher()
    handle = await launcher.spawn("frozen", Works)
    assert await handle.call("blocks", 0.5) == "done"
    waits = asyncio.create_task(handle.call("waits"))
    stop(await handle.call("where"))
    with pytest.raises(WorkerDied, match="did not answer for 5 s, and was killed"):
        await waits
    await handle.close()
    await launcher.close()
