"""A coroutine for callers that are none: in a script, within a running loop, and stopped by hand."""

from __future__ import annotations

import asyncio
import os
import signal
import threading

import pytest

from agentrl.api import event_loop


async def answer() -> tuple[int, str]:
    await asyncio.sleep(0)
    return 42, threading.current_thread().name


async def fails() -> None:
    raise KeyError("mine")


@pytest.mark.slow
def test_without_a_loop_it_runs_here() -> None:
    assert event_loop.run(answer) == (42, threading.current_thread().name)
    with pytest.raises(KeyError, match="mine") as raised:
        event_loop.run(fails)
    assert raised.value.__context__ is None, "a traceback would begin with 'no running event loop'"


async def test_within_a_running_loop_it_has_a_thread_of_its_own() -> None:
    assert event_loop.run(answer) == (42, "agentrl")
    with pytest.raises(KeyError, match="mine"):
        event_loop.run(fails)
    assert "agentrl" not in {thread.name for thread in threading.enumerate()}


async def test_the_stop_button_cancels_it_and_waits() -> None:
    """A notebook raises KeyboardInterrupt in the main thread, in which its own loop runs."""
    closed = []

    async def long() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            await asyncio.sleep(0.01)
            closed.append(True)
            raise

    with pytest.raises(KeyboardInterrupt):
        event_loop.run(long)
    assert closed == [True]
    assert "agentrl" not in {thread.name for thread in threading.enumerate()}
