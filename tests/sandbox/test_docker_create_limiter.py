"""Few creates at once, and none while the engine is down."""

from __future__ import annotations

import asyncio

import pytest

from agentrl.sandbox.docker.create_limiter import CreateLimiter, EngineChoked
from agentrl.types.sandbox import SandboxStartFailed, SandboxUnavailable
from tests.waiting import turns


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def make(clock: Clock) -> CreateLimiter:
    return CreateLimiter(at_once=2, per_second=1e6, failures=3, open_s=(30, 90), clock=clock)


async def fail(limiter: CreateLimiter, error: Exception) -> None:
    with pytest.raises(type(error)):
        async with limiter.enter():
            raise error


async def test_so_many_at_once() -> None:
    limiter = CreateLimiter(at_once=2, per_second=1e6)
    inside, most = 0, 0

    async def one() -> None:
        nonlocal inside, most
        async with limiter.enter():
            inside += 1
            most = max(most, inside)
            await turns()
            inside -= 1

    await asyncio.gather(*(one() for _ in range(10)))
    assert most == 2


async def test_so_many_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses = []

    async def sleep(seconds: float) -> None:
        pauses.append(round(seconds, 6))

    monkeypatch.setattr("agentrl.sandbox.docker.create_limiter.asyncio.sleep", sleep)
    limiter = CreateLimiter(at_once=8, per_second=4, clock=Clock())
    for _ in range(4):
        async with limiter.enter():
            pass
    assert pauses == [0.0, 0.25, 0.5, 0.75]


async def test_failures_in_a_row_open_the_circuit_and_one_trial_closes_it() -> None:
    clock = Clock()
    limiter = make(clock)
    for _ in range(3):
        await fail(limiter, EngineChoked("no answer within 60 s"))
    with pytest.raises(SandboxUnavailable, match=r"3 times in a row; the last: no answer[\s\S]*in 30 s"):
        async with limiter.enter():
            raise AssertionError("the circuit is open")
    clock.now += 31
    async with limiter.enter():  # the trial, while which nobody else gets in
        with pytest.raises(SandboxUnavailable):
            async with limiter.enter():
                raise AssertionError("only one goes on trial")
    async with limiter.enter():
        pass


async def test_a_failed_trial_opens_it_again() -> None:
    clock = Clock()
    limiter = make(clock)
    for _ in range(3):
        await fail(limiter, EngineChoked("x"))
    clock.now += 31
    await fail(limiter, EngineChoked("still"))
    with pytest.raises(SandboxUnavailable, match="still"):
        async with limiter.enter():
            pass


async def test_it_is_open_for_longer_after_each_failed_trial_up_to_a_limit() -> None:
    clock = Clock()
    limiter = make(clock)
    for _ in range(3):
        await fail(limiter, EngineChoked("x"))
    for seconds in (30, 60, 90, 90):
        clock.now += seconds - 1
        with pytest.raises(SandboxUnavailable, match="asked again in 1 s"):
            async with limiter.enter():
                raise AssertionError("the circuit is open")
        clock.now += 2
        await fail(limiter, EngineChoked("x"))


async def test_what_the_engine_refuses_does_not_count() -> None:
    limiter = make(Clock())
    for _ in range(2):
        await fail(limiter, EngineChoked("x"))
    await fail(limiter, SandboxStartFailed("bad mount"))
    await fail(limiter, EngineChoked("x"))  # the third failure, but not in a row
    async with limiter.enter():
        pass


def test_it_serves_one_loop_after_the_other() -> None:
    limiter = CreateLimiter(at_once=1, per_second=1e6)

    async def two() -> None:
        async def one() -> None:
            async with limiter.enter():
                await turns()

        await asyncio.gather(one(), one())

    asyncio.run(two())
    asyncio.run(two())
