"""The driver's engine behind HTTP: the same answers and the same errors, for who has the token."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
import pytest

from agentrl.distributed.gateway import Gateway, GatewayEngine
from agentrl.engines.embedded.engine import TorchEngine
from agentrl.engines.http import Refused
from agentrl.types.engine import Completion, ContextOverflow, Engine, Sampling
from agentrl.types.errors import EngineError
from agentrl.types.task import Message, Task
from tests.engines.conftest import make_model
from tests.waiting import until_async

GREEDY = Sampling(temperature=0.0, max_tokens=8)


@pytest.fixture
async def gateway() -> AsyncIterator[Gateway]:
    made = Gateway("127.0.0.1")
    yield made
    await made.close()


@pytest.fixture
async def engine() -> AsyncIterator[TorchEngine]:
    made = TorchEngine(make_model(), max_batch=4, max_context=64)
    yield made
    await made.close()


async def client(gateway: Gateway, engine: Any, token: str | None = None) -> GatewayEngine:
    url = await gateway.url(engine)
    return GatewayEngine(url, token or gateway.token, name="x", trainable=True, max_context=64, timeout_s=120)


async def test_the_answers_are_the_engines(gateway: Gateway, engine: TorchEngine) -> None:
    remote = await client(gateway, engine)
    for sampling in (GREEDY, Sampling(max_tokens=8, seed=5)):
        there = await remote.generate([1, 2, 3], sampling, "a")
        here = await engine.generate([1, 2, 3], sampling, "b")
        assert there.queue_s is not None
        assert there.decode_s is not None
        assert msgspec.structs.replace(there, queue_s=here.queue_s, decode_s=here.decode_s) == here
    scored = await remote.score([1, 2, 3], [[4, 5], [6]], [3, 1])
    assert scored == await engine.score([1, 2, 3], [[4, 5], [6]], [3, 1])
    assert engine.stats["parked"] > 0
    remote.end_session("a")
    engine.end_session("b")
    await until_async(lambda: not engine.stats["parked"])  # the end of a session reaches the engine
    await remote.close()


async def test_the_errors_are_the_engines(gateway: Gateway, engine: TorchEngine) -> None:
    remote = await client(gateway, engine)
    with pytest.raises(ContextOverflow, match="64 tokens leave no room"):
        await remote.generate([1] * 64, GREEDY, "a")
    with pytest.raises(Refused, match="token 999 is not among the model's"):
        await remote.generate([999], GREEDY, "a")
    await engine.close()
    with pytest.raises(EngineError, match="closed"):
        await remote.generate([1], GREEDY, "a")
    await gateway.close()
    with pytest.raises(EngineError, match="cannot be reached"):
        await remote.generate([1], GREEDY, "a")
    await remote.close()


async def test_nobody_else_is_answered(gateway: Gateway, engine: TorchEngine) -> None:
    stranger = await client(gateway, engine, token="guess")
    with pytest.raises(Refused, match="401"):
        await stranger.generate([1], GREEDY, "a")
    await stranger.close()


class Waiting(Engine):
    """Notes who begins, and whose request is cancelled."""

    name, trainable, max_context = "waiting", True, 64

    def __init__(self) -> None:
        self.begun: list[tuple[str, str, int]] = []
        self.asked, self.cancelled = asyncio.Event(), asyncio.Event()

    def begin_session(self, session: str, task: Task, messages: list[Message], seed: int) -> None:
        self.begun.append((session, task.id, seed))

    async def generate(self, token_ids: Sequence[int], sampling: Sampling, session: str) -> Completion:
        self.asked.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        raise AssertionError


async def test_sessions_begin_there_and_requests_end_with_who_asked(gateway: Gateway) -> None:
    engine = Waiting()
    remote = await client(gateway, engine)
    remote.begin_session("a", Task.of("t", "Do."), [], 7)
    asking = asyncio.create_task(remote.generate([1], GREEDY, "a"))
    await engine.asked.wait()
    assert engine.begun == [("a", "t", 7)]
    asking.cancel()
    await engine.cancelled.wait()
    await remote.close()
