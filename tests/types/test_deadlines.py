"""Deadlines in the time that the event loop has lived."""

from __future__ import annotations

import asyncio
import logging
import re
from pathlib import Path

import pytest

from agentrl.types.clocks.deadline import Deadline, Timer
from agentrl.types.clocks.heartbeat import BEAT_S, MOST_S, heartbeat
from tests.standing import stand_still, standing

ROOT = Path(__file__).parents[2]


def now() -> float:
    return asyncio.get_running_loop().time()


async def over_after(seconds: float, *standing_still: float) -> float:
    """When a deadline passes, if the loop stands still for so long at each second."""
    began = now()

    async def stands() -> None:
        for each in standing_still:
            await asyncio.sleep(1)
            stand_still(each)

    task = asyncio.create_task(stands())
    with pytest.raises(TimeoutError):
        async with Deadline(seconds) as deadline:
            await asyncio.Event().wait()
    assert deadline.expired()
    task.cancel()
    return now() - began


@pytest.mark.parametrize(
    ("stands", "most"),
    [
        ((), 0.0),
        ((100.0,), 100.0),  # a Ctrl-Z
        ((86400.0,) * 3, 3 * 86400.0),
        ((1.0,) * 5, 5.0),  # starved
        ((MOST_S - BEAT_S,) * 5, 0.0),  # a busy moment is the episode's
    ],
)
def test_a_deadline_waits_while_the_loop_stands_still(stands: tuple[float, ...], most: float) -> None:
    took = standing(over_after(10.0, *stands))
    assert 10.0 + most - len(stands) * MOST_S - 0.1 <= took <= 10.0 + most + 0.1


def test_what_came_while_the_loop_stood_still_is_read_before_the_deadline_passes() -> None:
    async def program() -> str:
        answer = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(9.9, answer.set_result, "here")
        async with Deadline(5.0):
            await asyncio.sleep(4.5)
            stand_still(60)  # the answer came 5.4 s into it
            return await answer

    assert standing(program()) == "here"


def test_a_deadline_that_was_due_in_the_same_moment_does_not_pass_before_the_loop_has_lived() -> None:
    """The process is stopped 10 ms before the end and wakes a minute later: the 10 ms are still there."""

    async def program() -> float:
        async def stands() -> None:
            await asyncio.sleep(4.99)
            stand_still(60)

        task = asyncio.create_task(stands())
        began = now()
        with pytest.raises(TimeoutError):
            async with Deadline(5.0 + MOST_S):
                await asyncio.Event().wait()
        await task
        return now() - began

    assert standing(program()) >= 65.0


def test_a_block_that_ends_in_time_leaves_no_timer_and_its_own_timeouts_pass_through() -> None:
    async def program() -> None:
        async with Deadline(5.0):
            await asyncio.sleep(1)
        with pytest.raises(TimeoutError, match="mine"):
            async with Deadline(5.0) as deadline:
                raise TimeoutError("mine")
        assert not deadline.expired()
        assert not asyncio.get_running_loop()._scheduled or all(  # type: ignore[attr-defined]
            handle.cancelled()
            for handle in asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]
        )

    standing(program())


def test_a_cancellation_from_outside_is_no_timeout() -> None:
    async def program() -> None:
        async def waits() -> None:
            async with Deadline(5.0):
                await asyncio.Event().wait()

        task = asyncio.create_task(waits())
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    standing(program())


def test_deadlines_within_each_other_pass_in_their_order() -> None:
    async def program() -> list[bool]:
        with pytest.raises(TimeoutError):
            async with Deadline(3.0) as outer, Deadline(8.0) as inner:
                await asyncio.Event().wait()
        return [outer.expired(), inner.expired()]

    assert standing(program()) == [True, False]


def test_a_deadline_can_be_stopped_and_goes_on_with_what_was_left() -> None:
    async def program() -> float:
        deadline, began = Deadline(10.0), now()

        async def stops() -> None:
            await asyncio.sleep(4)
            with deadline.stopped():
                await asyncio.sleep(100)
                with deadline.stopped():
                    await asyncio.sleep(100)

        task = asyncio.create_task(stops())
        with pytest.raises(TimeoutError):
            async with deadline:
                await asyncio.Event().wait()
        await task
        return now() - began

    assert standing(program()) == pytest.approx(210.0, abs=0.01)


def test_one_that_was_stopped_before_it_was_entered_waits() -> None:
    async def program() -> None:
        deadline = Deadline(1.0)
        with deadline.stopped():
            async with deadline:
                await asyncio.sleep(100)

    standing(program())


@pytest.mark.parametrize("seconds", [0.0, -1.0])
def test_no_time_is_over_at_the_first_wait(seconds: float) -> None:
    async def program() -> float:
        began = now()
        with pytest.raises(TimeoutError):
            async with Deadline(seconds):
                await asyncio.sleep(10)
        return now() - began

    assert standing(program()) == 0.0


def test_a_timer_calls_once_and_not_after_it_was_stopped() -> None:
    async def program() -> list[float]:
        called: list[float] = []
        first, second = Timer(2.0, lambda: called.append(now())), Timer(2.0, lambda: called.append(-1.0))
        first.go()
        second.go()
        await asyncio.sleep(1)
        second.stop()
        stand_still(50)
        await asyncio.sleep(100)
        return called

    (at,) = standing(program())
    assert 52.0 - MOST_S <= at <= 52.1


def test_the_log_says_that_the_process_stood_still(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        standing(over_after(10.0, 1.0, 100.0))
    (record,) = caplog.records
    assert "stood still for 100 s" in record.message


def test_the_time_that_a_loop_stood_still_is_counted() -> None:
    async def program() -> float:
        await over_after(10.0, 50.0, 50.0)
        return heartbeat().stood_s

    assert standing(program()) == pytest.approx(100.0, abs=1.0)


def test_the_rooms_that_play_episodes_measure_time_in_no_other_way() -> None:
    """`asyncio.timeout` and `wait_for` count the time in which the process was stopped."""
    rooms = ("rollout", "tools", "sandbox", "rewards", "engines")
    own = ("engines/vllm/launch.py", "sandbox/conformance/")  # servers that start; checks of a backend
    found = [
        str(path.relative_to(ROOT))
        for room in rooms
        for path in (ROOT / "agentrl" / room).rglob("*.py")
        if re.search(r"asyncio\.(timeout|timeout_at|wait_for)\(", path.read_text())
        and not str(path.relative_to(ROOT / "agentrl")).startswith(own)
    ]
    assert not found
