"""The watchdog names what computes in the event loop, and nothing else."""

from __future__ import annotations

import asyncio
import logging
import threading
import time

import pytest

from agentrl.config.limits import Limits
from agentrl.rollout.faults import stalls
from agentrl.rollout.faults.stalls import STALL_S, Frame, Stall, Stalls, watched
from agentrl.rollout.scheduler import RolloutScheduler
from tests.stalls import PACKAGE, is_ours


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


class Heard(Stalls):
    def __init__(self) -> None:
        super().__init__()
        self.all: list[Stall] = []

    def add(self, stall: Stall) -> None:
        self.all.append(stall)
        super().add(stall)


@pytest.mark.parametrize("work", [compute, in_c])
async def test_what_computes_in_the_loop_is_named_and_counted(work: object, caplog: pytest.LogCaptureFixture) -> None:
    Stalls._seen.clear()
    heard = Heard()

    async def tool() -> None:
        work(3 * STALL_S)  # type: ignore[operator]

    with watched(heard), caplog.at_level(logging.WARNING, stalls.__name__):
        for _ in range(2):
            await asyncio.create_task(tool())
            await asyncio.sleep(0)
    assert len(heard.all) == 2
    for stall in heard.all:
        assert stall.seconds > STALL_S
        assert f"{work.__name__} (" in str(stall)  # type: ignore[attr-defined]
        assert "tool" in str(stall)
        assert any(frame.waits for frame in stall.stack)
        assert not is_ours(stall)
    assert [record.message.count("stood still") for record in caplog.records] in ([1], [1, 1])  # by its line
    found = heard.metrics()
    assert found["loop_stalls"] == 2
    assert found["loop_stall_s"] > 2 * STALL_S
    assert heard.metrics() == {}


async def test_many_short_callbacks_waiting_and_threads_are_no_stall() -> None:
    heard = Heard()
    loop = asyncio.get_running_loop()
    with watched(heard):
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


async def test_the_scheduler_reports_stalls_with_its_metrics() -> None:
    class Player:
        def expect(self, items: object) -> None: ...

        async def play(self, item: str) -> list[object]:
            compute(2 * STALL_S)
            raise asyncio.CancelledError

    async with RolloutScheduler(Player(), concurrency=1, limits=Limits()) as scheduler:  # type: ignore[arg-type]
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
    ours = Frame(f"{PACKAGE}/tools/desk/calculator.py", 60, "Calculator.calculate", waits=True)
    computes, of_a_test = Frame("lib.py", 1, "round", waits=False), Frame("tests/x.py", 2, "test_x", waits=True)
    assert is_ours(Stall(1.0, (computes, ours, of_a_test)))
    assert not is_ours(Stall(1.0, (computes, of_a_test, ours)))
    assert not is_ours(Stall(1.0, (computes,)))


def test_a_watchdog_ends_with_what_it_watches() -> None:
    async def nothing() -> None:
        with watched(Stalls()):
            await asyncio.sleep(0)

    before = threading.active_count()
    asyncio.run(nothing())
    assert threading.active_count() == before
