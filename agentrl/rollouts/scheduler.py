"""Scheduler: runs episodes concurrently, each once, and stores each when it ends.

Each episode in flight has its own task, so a slow episode does not delay others. Closing the scheduler discards the
episodes in flight; a resumed run repeats them.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

from agentrl.config.limits import Limits
from agentrl.rollouts.faults.budgets import Budgets
from agentrl.rollouts.faults.stalls import Stalls, watched
from agentrl.rollouts.garbage import rare_collections
from agentrl.rollouts.groups.scorer import GroupScorer
from agentrl.rollouts.runner import EpisodeRunner

Item = TypeVar("Item")

BEGIN_AT_ONCE = 64
"""Maximum of episodes that begin in one pass of the event loop. Thousands would delay the first replies."""


def _nothing(*event: Any) -> None:
    """Default of callbacks: does nothing."""


@dataclass(order=True)
class _Job:
    """Episode from its submission until it is stored, or group until it is scored.

    Jobs begin in the order of `rank`, then of `number`."""

    rank: tuple[int, ...]
    number: int
    work: Callable[[], Awaitable[None]] = field(compare=False)
    begun: Callable[[], None] = field(compare=False)
    ended: asyncio.Future[None] = field(compare=False)


class RolloutScheduler(Generic[Item]):
    """Runs submitted episodes, at most `concurrency` at a time. Use it in `async with`.

    The first error of a budget, the store or the runner ends the run: all submitted episodes that have not ended fail
    with it, and no further episode begins.

    Args:
        runner: runs the episodes.
        limits: limits of the failure budgets.
        store: stores and reports an ended episode, given after its forks.
        groups: scores a group when its last episode is stored, before that counts as ended.
        stalls: counts those of this event loop, and of others that episodes run in.
    """

    def __init__(
        self,
        runner: EpisodeRunner[Item],
        *,
        concurrency: int,
        limits: Limits,
        store: Callable[..., None] = _nothing,
        groups: GroupScorer[Item] | None = None,
        stalls: Stalls | None = None,
    ) -> None:
        self._runner, self._store, self._limits, self._groups = runner, store, limits, groups
        self._budgets = Budgets(limits)
        self._free = concurrency
        self._waiting: list[_Job] = []  # a heap
        self._running: dict[asyncio.Task[None], _Job] = {}
        self._numbers = itertools.count()
        self._failure: Exception | None = None
        self._begins = False  # a pass that begins jobs is scheduled
        self._utilization = Utilization()
        self._stalls = stalls or Stalls()
        self._calm = ExitStack()

    async def __aenter__(self) -> RolloutScheduler[Item]:
        self._calm.enter_context(rare_collections())
        self._calm.enter_context(watched(self._stalls.add))
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    def expect(self, items: Sequence[Item]) -> None:
        """Announces items to the runner before they are submitted. Raises the errors of `EpisodeRunner.expect`."""
        self._runner.expect(items)
        if self._groups is not None:
            self._groups.expect(items)

    def submit(self, item: Item, *rank: int, begun: Callable[[], None] = _nothing) -> asyncio.Future[None]:
        """Queues an episode.

        Args:
            rank: priority; the lowest waiting rank begins first, equal ranks in order of submission.
            begun: called when the episode begins.

        Returns:
            A future that is done when the episode is stored. It fails when the run fails:
            TooManyUserErrors, EngineDown, SandboxDown, ServiceDown, DeadPolicy: the failure budget of a cause is spent.
            StoreError: an episode could not be stored.
        """
        return self._submit(partial(self._episode, item), rank, begun)

    def settle(self, group_id: str, *rank: int) -> asyncio.Future[None]:
        """Scores a group whose episodes are all stored, unless it is scored already. Otherwise like `submit`."""
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

    async def abort(self, submitted: Mapping[asyncio.Future[None], Item]) -> None:
        """Cancels episodes that have not ended, without storing them. Returns when they are closed."""
        aborted = {ended: item for ended, item in submitted.items() if not ended.done()}
        running = [task for task, job in self._running.items() if job.ended in aborted]
        for ended, item in aborted.items():
            ended.cancel()
            if self._groups is not None:
                self._groups.aborted(item)
        self._waiting = [job for job in self._waiting if job.ended not in aborted]
        heapq.heapify(self._waiting)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def play_all(self, items: Sequence[Item]) -> None:
        """Runs all items. Raises the errors of `expect` and `submit`."""
        self.expect(items)
        for ended in [self.submit(item) for item in items]:
            await ended

    def counts(self) -> dict[str, int]:
        """Returns the number of episodes (and scorings of groups) that run, and that wait for a free place."""
        return {"running": len(self._running), "waiting": len(self._waiting)}

    def renew_budgets(self) -> None:
        """Resets the failure counts."""
        self._budgets = Budgets(self._limits)
        if self._groups is not None:
            self._groups.renew_budgets()

    def utilization(self) -> dict[str, float]:
        """Returns since the last call: `episodes_in_flight` (mean), and `rollouts_wait_s`, the seconds without any.

        Adds `loop_stalls` and `loop_stall_s`, if a callback of the event loop computed for too long.
        """
        return self._utilization.metrics() | self._stalls.metrics()

    async def close(self) -> None:
        """Cancels and discards the episodes in flight. May be called twice."""
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
        tree = await self._runner.play(item)
        self._store(*tree)
        self._budgets.spend(tree[-1])
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
        future.exception()  # marks it as retrieved: asyncio does not warn if it is never awaited


class Utilization:
    """Measures the number of episodes in flight over time."""

    def __init__(self) -> None:
        self.running = 0
        self._begin()

    def _begin(self) -> None:
        self._since = self._at = time.perf_counter()
        self._episode_seconds, self._idle_seconds = 0.0, 0.0

    def change(self, by: int) -> None:
        """Changes the number of episodes in flight by `by`."""
        now = time.perf_counter()
        self._episode_seconds += self.running * (now - self._at)
        self._idle_seconds += (now - self._at) * (self.running == 0)
        self._at, self.running = now, self.running + by

    def metrics(self) -> dict[str, float]:
        """Returns means since the last call."""
        self.change(0)
        seconds = max(self._at - self._since, 1e-9)
        found = {"episodes_in_flight": self._episode_seconds / seconds, "rollouts_wait_s": self._idle_seconds}
        self._begin()
        return found
