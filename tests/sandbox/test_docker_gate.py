"""Few creates at once, and none while the engine is down."""

from __future__ import annotations

import asyncio

import pytest

from agentrl.sandbox.docker.gate import EngineChoked, Gate
from agentrl.types.sandbox import SandboxStartFailed, SandboxUnavailable


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def make(clock: Clock) -> Gate:
    return Gate(at_once=2, per_second=1e6, failures=3, shut_s=(30, 90), clock=clock)


async def fail(gate: Gate, error: Exception) -> None:
    with pytest.raises(type(error)):
        async with gate.enter():
            raise error


async def test_so_many_at_once() -> None:
    gate = Gate(at_once=2, per_second=1e6)
    inside, most = 0, 0

    async def one() -> None:
        nonlocal inside, most
        async with gate.enter():
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0.001)
            inside -= 1

    await asyncio.gather(*(one() for _ in range(10)))
    assert most == 2


async def test_so_many_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses = []

    async def sleep(seconds: float) -> None:
        pauses.append(round(seconds, 6))

    monkeypatch.setattr("agentrl.sandbox.docker.gate.asyncio.sleep", sleep)
    gate = Gate(at_once=8, per_second=4, clock=Clock())
    for _ in range(4):
        async with gate.enter():
            pass
    assert pauses == [0.0, 0.25, 0.5, 0.75]


async def test_failures_in_a_row_shut_it_and_one_trial_opens_it() -> None:
    clock = Clock()
    gate = make(clock)
    for _ in range(3):
        await fail(gate, EngineChoked("no answer within 60 s"))
    with pytest.raises(SandboxUnavailable, match=r"3 times in a row; the last: no answer[\s\S]*in 30 s"):
        async with gate.enter():
            raise AssertionError("it is shut")
    clock.now += 31
    async with gate.enter():  # the trial, while which nobody else gets in
        with pytest.raises(SandboxUnavailable):
            async with gate.enter():
                raise AssertionError("only one goes on trial")
    async with gate.enter():
        pass


async def test_a_failed_trial_shuts_it_again() -> None:
    clock = Clock()
    gate = make(clock)
    for _ in range(3):
        await fail(gate, EngineChoked("x"))
    clock.now += 31
    await fail(gate, EngineChoked("still"))
    with pytest.raises(SandboxUnavailable, match="still"):
        async with gate.enter():
            pass


async def test_it_is_shut_for_longer_after_each_failed_trial_up_to_a_limit() -> None:
    clock = Clock()
    gate = make(clock)
    for _ in range(3):
        await fail(gate, EngineChoked("x"))
    for seconds in (30, 60, 90, 90):
        clock.now += seconds - 1
        with pytest.raises(SandboxUnavailable, match="asked again in 1 s"):
            async with gate.enter():
                raise AssertionError("it is shut")
        clock.now += 2
        await fail(gate, EngineChoked("x"))


async def test_what_the_engine_refuses_does_not_count() -> None:
    gate = make(Clock())
    for _ in range(2):
        await fail(gate, EngineChoked("x"))
    await fail(gate, SandboxStartFailed("bad mount"))
    await fail(gate, EngineChoked("x"))  # the third failure, but not in a row
    async with gate.enter():
        pass


def test_it_serves_one_loop_after_the_other() -> None:
    gate = Gate(at_once=1, per_second=1e6)

    async def two() -> None:
        async def one() -> None:
            async with gate.enter():
                await asyncio.sleep(0.001)

        await asyncio.gather(one(), one())

    asyncio.run(two())
    asyncio.run(two())
