"""The trainer's thread: one call after the other, results and errors come back, and it ends."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
import torch

from agentrl.train.compute_thread import ComputeThread


def test_calls_are_made_in_one_thread_one_after_the_other() -> None:
    now: list[str] = []
    threads: set[threading.Thread] = set()
    most = 0

    def work(number: int) -> int:
        nonlocal most
        threads.add(threading.current_thread())
        now.append("begun")
        most = max(most, len(now))
        time.sleep(0.005)
        now.pop()
        return number

    async def main() -> list[int]:
        thread = ComputeThread()
        found = await asyncio.gather(*(thread.call(work, number) for number in range(6)))
        await thread.close()
        return found

    assert asyncio.run(main()) == list(range(6))
    assert most == 1
    (only,) = threads
    only.join(timeout=60)  # it says that it ends a moment before it does
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
    begun, ended = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        time.sleep(0.05)
        ended.set()

    async def main() -> None:
        thread = ComputeThread()
        call = asyncio.create_task(thread.call(work))
        while not begun.is_set():
            await asyncio.sleep(0.001)
        call.cancel()
        await thread.close()
        assert call.cancelled()
        assert ended.is_set()

    asyncio.run(main())


def test_a_call_that_never_returns_keeps_nobody_from_leaving() -> None:
    never = threading.Event()

    async def main() -> None:
        thread = ComputeThread()
        call = asyncio.create_task(thread.call(never.wait))
        await asyncio.sleep(0.01)
        call.cancel()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(thread.close(), 0.05)

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
