"""The watchdog names what computes in the event loop, and nothing else."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from types import FrameType
from typing import Any

import pytest

from agentrl.config.limits import Limits
from agentrl.rollouts.faults import stalls
from agentrl.rollouts.faults.stalls import STALL_S, StackFrame, Stall, Stalls, Watchdog, meant, watched
from agentrl.rollouts.scheduler import RolloutScheduler
from agentrl.training.compute_thread import Inline
from tests.stalls import PACKAGE, is_ours

pytestmark = pytest.mark.slow  # computes for seconds, as a stall does


def compute(seconds: float) -> None:
    """Takes processor time of this thread: how busy the machine is does not matter."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        sum(range(1000))


def in_c(seconds: float) -> None:
    """The same in calls of C that keep the interpreter to themselves for long."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pow(3, 1_500_000).bit_length()


def in_one_call(seconds: float) -> None:
    """The same in one call: Python computes `10**2500000`, as an agent may have asked."""
    round(7, -2_500_000)


class Heard(Stalls):
    def __init__(self) -> None:
        super().__init__()
        self.all: list[Stall] = []

    def add(self, stall: Stall) -> None:
        self.all.append(stall)
        super().add(stall)


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Awaitable[None]]:
    """Waits until watchdogs have looked, and wait for their next look."""
    looks, look = 0, Watchdog._look

    def counted(self: Watchdog) -> None:
        nonlocal looks
        look(self)
        looks += 1

    async def looked() -> None:
        until = looks + 2
        while looks < until:
            await asyncio.sleep(0.001)

    monkeypatch.setattr(Watchdog, "_look", counted)
    return looked


@pytest.mark.parametrize("work", [compute, in_c, in_one_call])
async def test_what_computes_in_the_loop_is_named_and_counted(
    work: Any, looked: Callable[[], Awaitable[None]], caplog: pytest.LogCaptureFixture
) -> None:
    Stalls._seen.clear()
    heard = Heard()

    async def tool() -> None:
        work(3 * STALL_S)

    with watched(heard.add), caplog.at_level(logging.WARNING, stalls.__name__):
        # A stall may be missed where a busy machine does not run the watchdog. Another may be named after the callback
        # that followed: the watchdog of this test's guard may get the interpreter lock first.
        while len(heard.all) < 2 or not any("tool" in str(stall) for stall in heard.all):
            await looked()
            await asyncio.create_task(tool())
            await looked()
    for stall in heard.all:
        assert stall.seconds > STALL_S
        assert stall.inferred or f"{work.__name__} (" in str(stall)
        assert stall.inferred or "tool" in str(stall)
        assert stall.inferred or any(frame.waits for frame in stall.stack)
        assert ("in or just before" in str(stall)) == stall.inferred
        assert not is_ours(stall)
    places = {(stall.stack[0].file, stall.stack[0].line) for stall in heard.all}
    assert sum(record.message.count("stood still") for record in caplog.records) == len(places)
    found = heard.metrics()
    assert found["loop_stalls"] == len(heard.all)
    assert found["loop_stall_s"] > 2 * STALL_S
    assert heard.metrics() == {}


async def test_a_stall_that_no_sample_fell_into_may_be_of_the_callback_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another thread may get the interpreter lock before the watchdog does."""
    monkeypatch.setattr(threading.Thread, "start", lambda thread: None)  # the watchdog's: it looks when it is told to
    found: list[Stall] = []
    watchdog = Watchdog(asyncio.get_running_loop(), found.append)
    monkeypatch.undo()
    watchdog._starvation = stalls._Starvation()
    monkeypatch.setattr(stalls._Starvation, "seconds", lambda self: 0.0)

    def look() -> None:
        thread = threading.Thread(target=watchdog._look)
        thread.start()
        thread.join()

    async def follows() -> None:
        look()

    look()
    asyncio.get_running_loop().call_soon(compute, 3 * STALL_S)
    await asyncio.create_task(follows())
    watchdog._end(time.thread_time())
    (stall,) = found
    assert stall.inferred
    assert "s in or just before " in str(stall)
    assert "follows" in str(stall)


def test_loops_of_others_are_watched_round_by_round() -> None:
    found: list[Stall] = []

    async def tool(seconds: float) -> None:
        compute(seconds)

    async def program() -> None:
        with watched(found.append):
            for seconds in (STALL_S / 4, 3 * STALL_S, STALL_S / 4):
                for _ in range(4 if seconds < STALL_S else 1):
                    await asyncio.create_task(tool(seconds))
                    await asyncio.sleep(4 * stalls._LOOK_S)

    with asyncio.Runner(loop_factory=pytest.importorskip("uvloop").new_event_loop) as runner:
        runner.run(program())
    (stall,) = found
    assert "tool" in str(stall)
    assert stall.seconds > STALL_S


async def test_a_loop_is_watched_once() -> None:
    """Workers of the local launcher run in the driver's loop, and an evaluation beside the training."""
    heard, again = Heard(), Heard()
    with watched(heard.add), watched(again.add):
        await asyncio.create_task(asyncio.sleep(0))
        asyncio.get_running_loop().call_soon(compute, 3 * STALL_S)
        await asyncio.sleep(0.01)
    assert (len(heard.all), len(again.all)) == (1, 0)


async def test_what_is_meant_to_compute_is_no_stall_and_what_follows_is() -> None:
    """Training where nothing runs beside it."""
    heard = Heard()

    async def trains(more: float) -> None:
        with meant():
            compute(3 * STALL_S)
        compute(more)

    async def ours() -> None:
        await Inline().call(compute, 3 * STALL_S)

    with watched(heard.add):
        for more in (STALL_S / 4, 3 * STALL_S):
            await asyncio.create_task(trains(more))
            await asyncio.sleep(4 * stalls._LOOK_S)
        await asyncio.create_task(ours())
    (stall,) = heard.all
    assert STALL_S < stall.seconds < 4 * STALL_S
    assert "trains" in str(stall)


async def test_many_short_callbacks_waiting_and_threads_are_no_stall() -> None:
    heard = Heard()
    loop = asyncio.get_running_loop()
    with watched(heard.add):
        for _ in range(40):
            await asyncio.create_task(asyncio.to_thread(compute, 0.01))
        for _ in range(40):
            loop.call_soon(compute, STALL_S / 10)
        for _ in range(5):
            await asyncio.sleep(0)
        thread = threading.Thread(target=compute, args=(2 * STALL_S,))
        thread.start()
        while thread.is_alive():
            await asyncio.sleep(0.001)
    assert heard.all == []


async def test_frames_are_read_only_while_the_loop_is_late(
    looked: Callable[[], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """CPython 3.11 crashed once where frames of the running loop were read all the time."""
    reads, current_frames = 0, sys._current_frames

    def counted() -> dict[int, FrameType]:
        nonlocal reads
        reads += 1
        return current_frames()

    monkeypatch.setattr(sys, "_current_frames", counted)
    with watched(Stalls().add):
        for _ in range(60):
            compute(STALL_S / 100)
            await asyncio.sleep(0.001)
        await looked()
        calm = reads
        await asyncio.create_task(asyncio.sleep(0))
        compute(2 * STALL_S)
    assert (calm, reads > calm) == (0, True)


async def test_the_scheduler_reports_stalls_with_its_metrics() -> None:
    class EpisodeRunner:
        def expect(self, items: object) -> None: ...

        async def play(self, item: str) -> list[object]:
            compute(2 * STALL_S)
            raise asyncio.CancelledError

    runner: Any = EpisodeRunner()
    async with RolloutScheduler[str](runner, concurrency=1, limits=Limits()) as scheduler:
        assert "loop_stalls" not in scheduler.utilization()
        scheduler.submit("one")
        while not scheduler._running:
            await asyncio.sleep(0)
        while scheduler._running:
            await asyncio.sleep(0)
        await asyncio.sleep(4 * stalls._LOOK_S)
        found = scheduler.utilization()
    assert found["loop_stalls"] == 1
    assert found["loop_stall_s"] > STALL_S


def test_a_tool_of_ours_that_computes_fails_its_test() -> None:
    ours = StackFrame(f"{PACKAGE}/tools/desk/calculator.py", 60, "Calculator.calculate", waits=True)
    computes, of_a_test = (
        StackFrame("lib.py", 1, "round", waits=False),
        StackFrame("tests/x.py", 2, "test_x", waits=True),
    )
    assert is_ours(Stall(1.0, (computes, ours, of_a_test)))
    assert not is_ours(Stall(1.0, (computes, of_a_test, ours)))
    assert not is_ours(Stall(1.0, (computes,)))


def test_a_watchdog_ends_with_what_it_watches() -> None:
    async def nothing() -> None:
        with watched(Stalls().add):
            await asyncio.sleep(0)

    before = threading.active_count()
    asyncio.run(nothing())
    assert threading.active_count() == before
