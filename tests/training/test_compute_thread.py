"""The trainer's thread: one call after the other, results and errors come back, and it ends."""

from __future__ import annotations

import asyncio
import threading

import pytest
import torch

from agentrl.training.compute_thread import CLOSE_S, ComputeThread
from tests.clock import Clock
from tests.waiting import turns, until_async


def test_calls_are_made_in_one_thread_one_after_the_other() -> None:
    threads: list[threading.Thread] = []

    def work(number: int) -> int:
        threads.append(threading.current_thread())
        return number

    async def main() -> list[int]:
        thread = ComputeThread()
        found = await asyncio.gather(*(thread.call(work, number) for number in range(6)))
        await thread.close()
        return found

    assert asyncio.run(main()) == list(range(6))
    only, *more = threads
    assert more == [only] * 5
    only.join()  # it says that it ends a moment before it does
    assert not only.is_alive()


def test_errors_come_back_and_the_thread_goes_on() -> None:
    async def main() -> None:
        thread = ComputeThread()
        with pytest.raises(ZeroDivisionError):
            await thread.call(lambda: 1 / 0)
        assert await thread.call(lambda: 7) == 7
        await thread.close()

    asyncio.run(main())


def test_closing_waits_for_a_call_that_nobody_waits_for_any_more() -> None:
    begun, released, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        released.wait()
        ended.set()

    async def main() -> None:
        thread = ComputeThread()
        call = asyncio.create_task(thread.call(work))
        await until_async(begun.is_set)
        call.cancel()
        closing = asyncio.create_task(thread.close())
        await turns()
        assert not closing.done()
        released.set()
        await closing
        assert call.cancelled()
        assert ended.is_set()

    asyncio.run(main())


def test_a_call_that_never_returns_keeps_nobody_from_leaving(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, never, clock = threading.Event(), threading.Event(), Clock(monkeypatch)

    def work() -> None:
        begun.set()
        never.wait()

    async def main() -> None:
        thread = ComputeThread()
        call = asyncio.create_task(thread.call(work))
        await until_async(begun.is_set)
        call.cancel()
        closing = asyncio.create_task(thread.close())
        await turns()
        assert not closing.done()
        clock.forward(CLOSE_S)
        await closing

    asyncio.run(main())
    never.set()


def test_what_never_computed_has_nothing_to_close() -> None:
    asyncio.run(ComputeThread().close())


def test_it_computes_with_the_threads_of_who_made_it_whatever_an_engine_set_since() -> None:
    own = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        made = ComputeThread()
        engine = threading.Thread(target=torch.set_num_threads, args=[1])
        engine.start()
        engine.join()

        async def main() -> int:
            threads = await made.call(torch.get_num_threads)
            await made.close()
            return threads

        assert asyncio.run(main()) == 3
    finally:
        torch.set_num_threads(own)
