"""The HTTP client and the choice among servers, against real servers that misbehave."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from agentrl.engines import replicas as module
from agentrl.engines.http import HttpClient, Refused
from agentrl.engines.replicas import Replicas
from agentrl.types.errors import EngineError
from tests.clock import Clock
from tests.waiting import until_async

from .http_server import serving, status


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_PAUSE_S", 0.01)


class Server:
    """Answers with its name, after the failures that it was told to make."""

    def __init__(self, name: str, failures: list[int] | None = None, health: int = 200) -> None:
        self.name, self.failures, self.health = name, list(failures or ()), health
        self.asked: list[str] = []
        self.hold: asyncio.Event | None = None

    async def __call__(self, path: str, body: Any) -> Any:
        if path == "/health":
            return status(self.health)
        self.asked.append(body["session"])
        if self.failures:
            return status(self.failures.pop(0), "not now")
        if self.hold is not None:
            await self.hold.wait()
        return {"name": self.name}


async def opened(stack: AsyncExitStack, *servers: Server, retries: int = 3) -> Replicas:
    client = HttpClient(timeout_s=60)
    stack.push_async_callback(client.close)
    urls = [await stack.enter_async_context(serving(server)) for server in servers]
    return Replicas(urls, client, retries=retries)


async def ask(replicas: Replicas, session: str) -> str:
    reply = await replicas.post("/say", {"session": session}, dict[str, str], session=session)
    return reply["name"]


async def test_sessions_stay_with_their_server_and_spread_over_all() -> None:
    async with AsyncExitStack() as stack:
        servers = [Server("a"), Server("b"), Server("c")]
        for server in servers:
            server.hold = asyncio.Event()
        replicas = await opened(stack, *servers)
        asking = [asyncio.create_task(ask(replicas, f"s{k}")) for k in range(9)]
        await until_async(lambda: sum(len(server.asked) for server in servers) == 9)
        assert [len(server.asked) for server in servers] == [3, 3, 3]
        for server in servers:
            server.hold.set()
        homes = await asyncio.gather(*asking)
        for _ in range(3):
            assert [await ask(replicas, f"s{k}") for k in range(9)] == homes
        replicas.end_session("s0")
        assert "s0" not in replicas._home


async def test_a_busy_home_is_left_for_the_least_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REBALANCE_THRESHOLD", 2)
    async with AsyncExitStack() as stack:
        replicas = await opened(stack, Server("a"), Server("b"))
        first = replicas.pick("s")
        assert replicas.pick("s") is first
        first.in_flight = 2
        assert replicas.pick("s") is not first


async def test_a_failure_goes_to_another_server_and_the_failed_one_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_PAUSE_S", module.LONGEST_PAUSE_S)
    clock = Clock(monkeypatch)
    async with AsyncExitStack() as stack:
        a, b = Server("a", failures=[503, 500]), Server("b")
        replicas = await opened(stack, a, b)
        assert await ask(replicas, "s") == "b"
        assert replicas.all[0].failures == 1
        replicas.all[1].in_flight = 99
        clock.forward(module.LONGEST_PAUSE_S)
        assert await ask(replicas, "t") == "b"
        assert a.asked == ["s", "t"]
        clock.forward(module.LONGEST_PAUSE_S)
        assert await ask(replicas, "u") == "a"
        assert replicas.all[0].failures == 0


async def test_retries_are_bounded_and_the_last_reason_is_told() -> None:
    async with AsyncExitStack() as stack:
        server = Server("a", failures=[500] * 99)
        replicas = await opened(stack, server, retries=2)
        with pytest.raises(EngineError, match=r"3 attempts failed, the last: status 500: not now"):
            await ask(replicas, "s")
        assert len(server.asked) == 3


async def test_a_sick_server_is_asked_for_its_health_before_it_gets_work() -> None:
    async with AsyncExitStack() as stack:
        server = Server("a", failures=[500], health=503)
        replicas = await opened(stack, server, retries=2)
        with pytest.raises(EngineError, match="/health"):
            await ask(replicas, "s")
        assert len(server.asked) == 1
        server.health = 200
        assert await ask(replicas, "s") == "a"


async def test_a_drained_server_gets_nothing_new_and_with_none_left_that_is_said() -> None:
    async with AsyncExitStack() as stack:
        a, b = Server("a"), Server("b")
        replicas = await opened(stack, a, b)
        home = replicas.pick("s")
        home.unavailable_reason = "half a model"
        assert await ask(replicas, "s") != {0: "a", 1: "b"}[replicas.all.index(home)]
        for replica in replicas.all:
            replica.unavailable_reason = "half a model"
        with pytest.raises(EngineError, match="no server is left: .*half a model"):
            await ask(replicas, "s")


async def test_a_refusal_is_not_tried_again() -> None:
    async with AsyncExitStack() as stack:
        server = Server("a", failures=[422])
        replicas = await opened(stack, server)
        with pytest.raises(Refused, match="refused with status 422: not now"):
            await ask(replicas, "s")
        assert len(server.asked) == 1


async def test_no_server_a_slow_one_and_nonsense_are_engine_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)

    async def nonsense(path: str, body: Any) -> Any:
        return status(200, "<html>")

    async def slow(path: str, body: Any) -> Any:
        clock.forward(90)
        await asyncio.Event().wait()

    client = HttpClient(timeout_s=60)
    with pytest.raises(EngineError, match="cannot be reached"):
        await client.post("http://127.0.0.1:9/", {}, dict)
    async with serving(nonsense) as url, serving(slow) as slow_url:
        with pytest.raises(EngineError, match="cannot be read"):
            await client.post(url, {}, dict[str, str])
        with pytest.raises(EngineError, match="no reply within"):
            await client.post(slow_url, {}, dict[str, str])
    await client.close()


def test_requests_that_fail_together_count_once_and_a_long_outage_pauses_no_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch, still=True)
    replica = module.Replica("http://x")
    for _ in range(500):
        replica.record_failure()
    assert replica.failures == 1
    for _ in range(2000):
        clock.forward(module.LONGEST_PAUSE_S)
        before = replica.retry_at
        replica.record_failure()
    assert replica.failures == 2001
    assert replica.retry_at - before == pytest.approx(module.LONGEST_PAUSE_S)


async def test_an_outage_is_told_at_once_and_again_with_its_name(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "FIRST_PAUSE_S", 0.0)
    monkeypatch.setattr(module, "LONGEST_PAUSE_S", 0.0)
    clock = Clock(monkeypatch)
    async with AsyncExitStack() as stack:
        replicas = await opened(stack, Server("a", failures=[503] * 9), retries=2)
        replicas.who = "policies.user"
        for _ in range(2):
            with pytest.raises(EngineError):
                await ask(replicas, "s")
        assert len(caplog.messages) == 1, "once, however many requests fail"
        assert caplog.messages[0].startswith("policies.user: http://127.0.0.1")
        clock.forward(module.SAY_EVERY_S)
        with pytest.raises(EngineError):
            await ask(replicas, "s")
        assert len(caplog.messages) == 2
