"""The scheduler: many episodes at once, each submitted one played once, stored and reported as it ends.

One task per episode in flight, no lock-step: a slow episode delays no other. Closing the scheduler stores nothing of
the episodes in flight; resume plays them again.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

from agentrl.config.limits import Limits
from agentrl.rollout.faults.budgets import Budgets
from agentrl.rollout.groups.scorer import GroupScorer
from agentrl.rollout.player import Player
from agentrl.types.episode import Episode
from agentrl.types.garbage import rare_collections

Item = TypeVar("Item")

BEGIN_AT_ONCE = 64
"""Episodes that begin in one pass of the event loop: thousands would keep the replies to the first ones waiting."""


def _nothing(*event: Any) -> None:
    """Nobody wants to know."""


@dataclass(order=True)
class _Job:
    """An episode from its submission until it is stored, or a group until it is scored.

    Jobs begin in the order of `rank`, then of `number`."""

    rank: tuple[int, ...]
    number: int
    work: Callable[[], Awaitable[None]] = field(compare=False)
    begun: Callable[[], None] = field(compare=False)
    ended: asyncio.Future[None] = field(compare=False)


class RolloutScheduler(Generic[Item]):
    """Plays what is submitted, at most `concurrency` episodes at once. To be used in `async with`.

    The first failure that the run does not bear ends it: of a budget, of the store, or of the player. All that was
    submitted and has not ended then fails with it, and nothing begins any more.

    Args:
        player: makes the episodes.
        limits: how many failures of each cause are borne.
        store: keeps and reports an episode that has ended.
        groups: scores a group when its last episode is stored, before that counts as ended.
    """

    def __init__(
        self,
        player: Player[Item],
        *,
        concurrency: int,
        limits: Limits,
        store: Callable[[Episode], None] = _nothing,
        groups: GroupScorer[Item] | None = None,
    ) -> None:
        self._player, self._store, self._limits, self._groups = player, store, limits, groups
        self._budgets = Budgets(limits)
        self._free = concurrency
        self._waiting: list[_Job] = []  # a heap
        self._running: dict[asyncio.Task[None], _Job] = {}
        self._numbers = itertools.count()
        self._failure: Exception | None = None
        self._begins = False  # a pass that begins jobs is scheduled
        self._utilization = Utilization()
        self._calm = ExitStack()

    async def __aenter__(self) -> RolloutScheduler[Item]:
        self._calm.enter_context(rare_collections())
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    def expect(self, items: Sequence[Item]) -> None:
        """Tells the player what will be submitted. Raises as `Player.expect`."""
        self._player.expect(items)
        if self._groups is not None:
            self._groups.expect(items)

    def submit(self, item: Item, *rank: int, begun: Callable[[], None] = _nothing) -> asyncio.Future[None]:
        """Has an episode played as soon as there is room.

        Args:
            rank: of those that wait, the lowest begins first; equals in the order of their submission.
            begun: called when it begins.

        Returns:
            Done when the episode is stored; fails when the run does:
            TooManyUserErrors, EngineDown, SandboxDown, ServiceDown, DeadPolicy: too many episodes failed by one cause.
            StoreError: an episode could not be stored.
        """
        return self._submit(partial(self._episode, item), rank, begun)

    def settle(self, group_id: str, *rank: int) -> asyncio.Future[None]:
        """Has a group scored whose episodes are all stored, unless that was done before. As `submit` otherwise."""
        if self._groups is None:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            done.set_result(None)
            return done
        return self._submit(partial(self._groups.score, group_id), rank, _nothing)

    def _submit(
        self, work: Callable[[], Awaitable[None]], rank: tuple[int, ...], begun: Callable[[], None]
    ) -> asyncio.Future[None]:
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._failure is not None:
            _fail(ended, self._failure)
            return ended
        heapq.heappush(self._waiting, _Job(rank, next(self._numbers), work, begun, ended))
        self._begin_soon()
        return ended

    async def play_all(self, items: Sequence[Item]) -> None:
        """Plays all of them. Raises as `expect` and `submit`."""
        self.expect(items)
        for ended in [self.submit(item) for item in items]:
            await ended

    def renew_budgets(self) -> None:
        """What has failed so far no longer counts."""
        self._budgets = Budgets(self._limits)
        if self._groups is not None:
            self._groups.renew_budgets()

    def utilization(self) -> dict[str, float]:
        """Since the last call: `episodes_in_flight` (mean), and `rollouts_wait_s`, the seconds in which none was."""
        return self._utilization.metrics()

    async def close(self) -> None:
        """Cancels what is in flight: nothing of it is stored. May be called twice."""
        for job in self._waiting:
            job.ended.cancel()
        self._waiting.clear()
        running = [*self._running]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        self._calm.close()

    def _begin_soon(self) -> None:
        if not self._begins:
            self._begins = True
            asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        self._begins = False
        for _ in range(BEGIN_AT_ONCE):
            if not self._free or not self._waiting:
                return
            job = heapq.heappop(self._waiting)
            self._free -= 1
            self._utilization.change(+1)
            job.begun()
            self._running[asyncio.create_task(self._play(job))] = job
        self._begin_soon()

    async def _episode(self, item: Item) -> None:
        episode = await self._player.play(item)
        self._store(episode)
        self._budgets.spend(episode)
        if self._groups is not None:
            await self._groups.ended(item)

    async def _play(self, job: _Job) -> None:
        try:
            await job.work()
        except Exception as error:
            self._stop(error)
        except asyncio.CancelledError:
            job.ended.cancel()
            raise
        else:
            if not job.ended.done():
                job.ended.set_result(None)
        finally:
            self._running.pop(asyncio.current_task(), None)  # type: ignore[arg-type]
            self._free += 1
            self._utilization.change(-1)
            if self._waiting:
                self._begin_soon()

    def _stop(self, failure: Exception) -> None:
        if self._failure is not None:
            return
        self._failure = failure
        for job in [*self._waiting, *self._running.values()]:
            _fail(job.ended, failure)
        self._waiting.clear()
        for task in self._running:
            if task is not asyncio.current_task():
                task.cancel()


def _fail(future: asyncio.Future[None], failure: Exception) -> None:
    if not future.done():
        future.set_exception(failure)
        future.exception()  # whoever waits for it raises it; asyncio need not warn if nobody does


class Utilization:
    """How many episodes were in flight, over time."""

    def __init__(self) -> None:
        self.running = 0
        self._begin()

    def _begin(self) -> None:
        self._since = self._at = time.perf_counter()
        self._episode_seconds, self._idle_seconds = 0.0, 0.0

    def change(self, by: int) -> None:
        """That many more episodes are in flight."""
        now = time.perf_counter()
        self._episode_seconds += self.running * (now - self._at)
        self._idle_seconds += (now - self._at) * (self.running == 0)
        self._at, self.running = now, self.running + by

    def metrics(self) -> dict[str, float]:
        """Means since the last call."""
        self.change(0)
        seconds = max(self._at - self._since, 1e-9)
        found = {"episodes_in_flight": self._episode_seconds / seconds, "rollouts_wait_s": self._idle_seconds}
        self._begin()
        return found
