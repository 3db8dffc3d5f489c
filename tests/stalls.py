"""Fails a test in which a coroutine of agentrl computed in the event loop for more than 500 ms of processor time.

A run tells 200 ms. Where other processes use the same core and its caches, the same work takes up to twice as long.

How busy the machine is does not matter: time in which the loop had no processor does not count. What a test itself
computes does not count, either.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import agentrl
from agentrl.curriculum.task_source import TaskSource, load_tasks
from agentrl.rollouts import builder
from agentrl.rollouts.faults.stalls import Stall, Watchdog

LONG_S = 0.5
PACKAGE = Path(agentrl.__file__).parent
CHECKS = PACKAGE / "sandbox" / "conformance"
"""Checks of sandbox backends: they are tests themselves."""
BETWEEN_STAGES = "train.<locals>.learn"
"""The coroutine that frees the models of a stage: no episode is in flight that could wait."""

RUN_FOREVER = asyncio.BaseEventLoop.run_forever


def is_ours(stall: Stall) -> bool:
    """Whether the coroutine that was at work is agentrl's, and not one of a test."""
    at_work = next((frame for frame in stall.stack if frame.waits), None)
    if at_work is None or at_work.name == BETWEEN_STAGES:
        return False
    return PACKAGE in Path(at_work.file).parents and CHECKS not in Path(at_work.file).parents


@contextmanager
def stalls_of_ours() -> Iterator[list[Stall]]:
    """Collects those of agentrl's coroutines, in each event loop that runs inside; nested, the innermost collects."""
    found: list[Stall] = []
    collected, begun = 0.0, 0.0

    def collects(phase: str, info: object) -> None:
        nonlocal collected, begun
        if phase == "start":
            begun = time.thread_time()
        else:
            collected += time.thread_time() - begun

    def watched(loop: asyncio.BaseEventLoop) -> None:
        watchdog = Watchdog(loop, lambda stall: found.append(stall) if is_ours(stall) else None)
        try:
            RUN_FOREVER(loop)
        finally:
            watchdog.stop()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio.BaseEventLoop, "run_forever", watched)
        gc.callbacks.append(collects)
        try:
            yield found
        finally:
            gc.callbacks.remove(collects)
    # The garbage collector looks at all that the tests of this process have left.
    found[:] = [stall for stall in found if stall.seconds - collected > LONG_S]


@contextmanager
def no_tasks_made_in_a_loop() -> Iterator[None]:
    """Fails where a coroutine of agentrl makes the tasks of a recipe: code of users computes then."""
    inside: list[str] = []

    @functools.wraps(load_tasks)
    def load(*args: Any) -> TaskSource:
        with suppress(RuntimeError):  # no loop runs in this thread
            coroutine: Any = getattr(asyncio.current_task(), "get_coro", lambda: None)()
            if coroutine is not None and PACKAGE in Path(coroutine.cr_code.co_filename).parents:
                inside.append(coroutine.__qualname__)
        return load_tasks(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(builder, "load_tasks", load)
        yield
    assert not inside, f"make the tasks before the event loop runs; they are made in {inside[0]}"


@pytest.fixture(autouse=True)
def no_stalls(request: pytest.FixtureRequest) -> Iterator[None]:
    with stalls_of_ours() as found, no_tasks_made_in_a_loop():
        yield
    if found:
        pytest.fail("the event loop stood still: " + "; ".join(map(str, found)), pytrace=False)
