"""The scheduler alone, with runners that are told when an episode ends."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence

import pytest

from agentrl.config.limits import Limits
from agentrl.rewards.components import RewardSet
from agentrl.rollouts.faults.budgets import EngineDown
from agentrl.rollouts.groups.scorer import GroupScorer
from agentrl.rollouts.scheduler import BEGIN_AT_ONCE, RolloutScheduler
from agentrl.types.episode import Episode, ErrorRecord
from agentrl.types.errors import StoreError
from tests.clock import Clock
from tests.store.make import make_episode
from tests.waiting import turns


class Waiting:
    """Plays names: an episode ends when it is told to."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.expected: list[str] = []
        self.ends: dict[str, asyncio.Future[None]] = {}
        self.failing: set[str] = set()

    def expect(self, items: Sequence[str]) -> None:
        self.expected += items

    async def play(self, item: str) -> list[Episode]:
        self.begun.append(item)
        self.ends[item] = asyncio.get_running_loop().create_future()
        await self.ends[item]
        error = ErrorRecord(kind="Bad", message="why", stage="generate", cause="engine")
        return [make_episode(item, **({"status": "infra_error", "error": error} if item in self.failing else {}))]

    async def end(self, *names: str) -> None:
        for name in names:
            self.ends[name].set_result(None)
        await turns()


def scheduler_of(runner: Waiting, concurrency: int, stored: list[str]) -> RolloutScheduler[str]:
    limits = Limits(engine_failures=2)
    return RolloutScheduler(runner, concurrency=concurrency, limits=limits, store=lambda e: stored.append(e.id))


async def test_who_waits_begins_by_rank() -> None:
    """Groups that a filter asks for in addition go before the backlog of later iterations."""
    runner, stored, begun = Waiting(), list[str](), list[str]()
    async with scheduler_of(runner, 2, stored) as scheduler:
        for iteration in (1, 2, 3):
            for k in range(2):
                scheduler.submit(f"it{iteration} {k}", iteration, k)
        await turns()
        extra = scheduler.submit("extra of it1", 1, 9, begun=lambda: begun.append("extra"))
        await turns()
        assert begun == [], "it waits for room"
        while len(stored) < 7:
            await runner.end(next(name for name in runner.begun if name not in stored))
        await extra
    assert runner.begun == ["it1 0", "it1 1", "extra of it1", "it2 0", "it2 1", "it3 0", "it3 1"]
    assert begun == ["extra"]
    assert stored == runner.begun


async def test_thousands_that_wait_are_no_tasks_and_begin_a_few_at_a_time() -> None:
    runner, names = Waiting(), [f"e{k}" for k in range(10_000)]
    async with scheduler_of(runner, 3 * BEGIN_AT_ONCE, []) as scheduler:
        before = len(asyncio.all_tasks())
        for name in names:
            scheduler.submit(name)
        assert runner.begun == []
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) - before == BEGIN_AT_ONCE
        await turns()
        assert runner.begun == names[: 3 * BEGIN_AT_ONCE]
    assert len(runner.begun) == 3 * BEGIN_AT_ONCE


async def test_the_first_failure_that_is_too_many_ends_all_and_keeps_what_ended() -> None:
    runner, stored = Waiting(), list[str]()
    runner.failing = {"b", "c"}
    async with scheduler_of(runner, 3, stored) as scheduler:
        futures = {name: scheduler.submit(name) for name in "abcde"}
        await turns()
        await runner.end("a", "b")
        assert runner.begun == [*"abcde"]
        await runner.end("c")
        assert stored == [*"abc"]
        for name in "cde":
            with pytest.raises(EngineDown, match="2 episodes in a row"):
                await futures[name]
        assert futures["a"].result() is futures["b"].result() is None
        with pytest.raises(EngineDown):
            await scheduler.submit("f")
        assert "f" not in runner.begun
    assert stored == [*"abc"], "what was in flight is not stored"


async def test_an_episode_that_cannot_be_stored_ends_all() -> None:
    def full(episode: Episode) -> None:
        raise StoreError("the disk is full")

    runner = Waiting()
    async with RolloutScheduler(runner, concurrency=2, limits=Limits(), store=full) as scheduler:
        playing = asyncio.create_task(scheduler.play_all(["a", "b", "c"]))
        await turns()
        assert runner.expected == ["a", "b", "c"]
        await runner.end("b")
        with pytest.raises(StoreError, match="full"):
            await playing
    assert runner.begun == ["a", "b"]


async def test_closing_stores_nothing_of_what_is_in_flight() -> None:
    runner, stored = Waiting(), list[str]()
    before, threshold = asyncio.all_tasks(), gc.get_threshold()
    async with scheduler_of(runner, 2, stored) as scheduler:
        futures = [scheduler.submit(name) for name in "abc"]
        await turns()
        assert gc.get_threshold() != threshold, "the collector looks for cycles rarely meanwhile"
        await runner.end("a")
    assert stored == ["a"]
    assert [future.cancelled() for future in futures] == [False, True, True]
    assert asyncio.all_tasks() == before
    assert gc.get_threshold() == threshold


async def test_utilization_is_the_mean_since_the_last_look(monkeypatch: pytest.MonkeyPatch) -> None:
    runner, clock = Waiting(), Clock(monkeypatch, still=True)
    async with scheduler_of(runner, 2, []) as scheduler:
        for name in "ab":
            scheduler.submit(name)
        await turns()
        scheduler.utilization()
        clock.forward(1)
        assert scheduler.utilization() == {"episodes_in_flight": pytest.approx(2), "rollouts_wait_s": 0}
        clock.forward(1)
        await runner.end("a")
        clock.forward(3)
        assert scheduler.utilization() == {"episodes_in_flight": pytest.approx(5 / 4), "rollouts_wait_s": 0}
        await runner.end("b")
        clock.forward(2)
        assert scheduler.utilization() == {"episodes_in_flight": 0, "rollouts_wait_s": pytest.approx(2)}


async def test_budgets_can_start_again() -> None:
    """One failure before and one after are not two in a row."""
    runner, stored = Waiting(), list[str]()
    runner.failing = {"a", "b"}
    async with scheduler_of(runner, 1, stored) as scheduler:
        for name in ("a", "b"):
            ended = scheduler.submit(name)
            await turns()
            await runner.end(name)
            await ended
            scheduler.renew_budgets()
    assert stored == ["a", "b"]


async def test_a_member_may_be_aborted_while_it_scores_its_group() -> None:
    """It has ended, so nothing is to come of its group."""

    class Record:
        def unscored(self, group_id: str) -> list[Episode]:
            return []

        def add(self, group_id: str, members: Sequence[Episode]) -> None: ...

    groups = GroupScorer(RewardSet(()), Record(), Limits(), lambda item: item[0], on_failure=lambda failed: None)
    groups.expect(["a1", "a2", "b1"])
    await groups.ended("a1")
    await groups.ended("a2")
    groups.aborted("a2")
    groups.aborted("b1")
