"""A discrete-event simulation of training: engines, tools, workers, trainer, and the real staleness rule.

It is an asyncio program with the structure of the real one, in simulated time (`clock.py`): episodes wait for capacity,
replies and tools; `agentrl.training.staleness` decides when groups start and train. It does not model failures, cache
evictions, network congestion, and the overhead of several trainer ranks.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
import statistics
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from agentrl.engines.replicas import REBALANCE_THRESHOLD
from agentrl.simulate.clock import simulated
from agentrl.simulate.pipeline import EngineCosts, Pipeline
from agentrl.training.staleness import StalenessPolicy
from agentrl.types.seeds import derive_seed


@dataclass(frozen=True)
class Prediction:
    """The prediction for a pipeline, from the first rollout to the last update.

    Attributes:
        seconds: total duration.
        tokens_per_s: sampled tokens per second.
        iteration_s: median duration of an iteration.
        engines_busy: share of time in which a replica has work.
        batch: mean number of requests on a busy replica.
        trainer_busy, workers_busy, driver_busy: shares of time.
        in_flight: mean number of episodes in flight.
        staleness: mean number of updates between the start of a group and the update that trained on it.
    """

    gpus: int
    seconds: float
    episodes_per_s: float
    tokens_per_s: float
    iteration_s: float
    engines_busy: float
    batch: float
    trainer_busy: float
    workers_busy: float
    driver_busy: float
    in_flight: float
    staleness: float


def predict(pipeline: Pipeline) -> Prediction:
    """Simulates a pipeline."""
    return simulated(_Run(pipeline).train())


class Busy:
    """The use of a resource over time."""

    def __init__(self) -> None:
        self.level, self.area, self.time, self._at = 0, 0.0, 0.0, _now()

    def change(self, by: int) -> None:
        """Adds `by` to what is in use."""
        now = _now()
        self.area += self.level * (now - self._at)
        self.time += (self.level > 0) * (now - self._at)
        self._at, self.level = now, self.level + by

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """Counts one more within the block."""
        self.change(+1)
        try:
            yield
        finally:
            self.change(-1)


class SimulatedServer:
    """A resource that does one task at a time, first come, first served."""

    def __init__(self) -> None:
        self._lock, self.busy = asyncio.Lock(), Busy()

    async def work(self, seconds: float) -> None:
        """Waits for the resource, then for the work."""
        if seconds:
            async with self._lock, self.busy.one():
                await asyncio.sleep(seconds)


class SimulatedReplica:
    """A server with continuous batching: each step samples one token per running request; prompts are prefilled between
    steps.

    The number of steps is continuous: the duration of a step changes whenever a request starts or ends. `_steps` counts
    all steps so far; a request of n tokens ends when `_steps` has grown by n.
    """

    def __init__(self, costs: EngineCosts) -> None:
        self._costs = costs
        self.requests = Busy()  # running and waiting
        self._room = asyncio.Semaphore(costs.max_batch)
        self._steps, self._prefill, self._context, self._at = 0.0, 0.0, 0.0, _now()
        self._ends: list[tuple[float, int, asyncio.Future[None], float]] = []
        self._number = itertools.count()
        self._timer: asyncio.TimerHandle | None = None

    async def generate(self, context: float, fresh: float, reply: float) -> None:
        """A completion of `reply` tokens after `context`, of which `fresh` are not in the cache."""
        async with self.requests.one():
            await asyncio.sleep(self._costs.latency_s)
            async with self._room:
                self._advance()
                self._prefill += fresh * self._costs.prefill_s_per_token
                end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                # The context of a request grows by its reply; the mean growth is half of it.
                size = context + reply / 2
                self._context += size
                heapq.heappush(self._ends, (self._steps + reply, next(self._number), end, size))
                self._set_timer()
                await end

    def _step_s(self) -> float:
        costs = self._costs
        return costs.step_s + costs.step_s_per_request * len(self._ends) + costs.step_s_per_token * self._context

    def _advance(self) -> None:
        """Advances prefill and steps to the present time."""
        passed, self._at = _now() - self._at, _now()
        prefilled = min(passed, self._prefill)
        self._prefill -= prefilled
        step_s = self._step_s()
        if self._ends and step_s:
            self._steps += (passed - prefilled) / step_s

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if self._ends:
            left = max(self._ends[0][0] - self._steps, 0.0)
            self._timer = asyncio.get_running_loop().call_later(self._prefill + left * self._step_s(), self._end)

    def _end(self) -> None:
        self._advance()
        first = self._ends[0][0]
        self._steps = max(self._steps, first)  # rounding must not leave the first request unfinished
        while self._ends and self._ends[0][0] <= self._steps:
            _, _, end, size = heapq.heappop(self._ends)
            self._context -= size
            end.set_result(None)
        self._set_timer()


class Loads:
    """Replicas by number of requests: finds the least loaded of a thousand without a scan."""

    def __init__(self, replicas: list[SimulatedReplica]) -> None:
        self._least = 0
        self._level = dict.fromkeys(replicas, 0)
        self._at: dict[int, dict[SimulatedReplica, None]] = {0: dict.fromkeys(replicas)}

    def least(self) -> SimulatedReplica:
        """The replica with the fewest requests; among equals, the one that has been so the longest."""
        return next(iter(self._at[self._least]))

    @asynccontextmanager
    async def one_more(self, replica: SimulatedReplica) -> AsyncIterator[None]:
        """Counts one more request within the block."""
        self._move(replica, +1)
        try:
            yield
        finally:
            self._move(replica, -1)

    def _move(self, replica: SimulatedReplica, by: int) -> None:
        level = self._level[replica]
        del self._at[level][replica]
        self._level[replica] = level + by
        self._at.setdefault(level + by, {})[replica] = None
        self._least = min(self._least, level + by)
        while not self._at[self._least]:
            self._least += 1


@dataclass(eq=False)
class _Group:
    """A group, as `StalenessPolicy` expects it."""

    number: int
    begun: int | None = None
    ended: int | None = None
    tokens: float = 0.0
    episodes: list[asyncio.Task[None]] = field(default_factory=list)


class _Run:
    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline

    async def train(self) -> Prediction:
        pipeline, costs = self.pipeline, self.pipeline.trainer
        self._replicas = [SimulatedReplica(pipeline.engine) for _ in range(pipeline.engine.replicas)]
        self._loads = Loads(self._replicas)
        self._workers = [SimulatedServer() for _ in range(pipeline.workers)]
        self._driver, self._flying, self._training = SimulatedServer(), Busy(), Busy()
        self._room = asyncio.Semaphore(pipeline.concurrency)
        self._sandboxes = asyncio.Semaphore(pipeline.sandboxes or pipeline.groups * pipeline.group_size * 1000)
        self._version, self._endings, self._sampled = 0, 0, 0.0
        self._changed = asyncio.Event()
        admission = StalenessPolicy(pipeline.max_staleness, pipeline.iterations)
        groups: list[_Group] = []
        drawn, ages, iterations = 0, list[int](), [0.0]
        for version in range(pipeline.iterations):
            self._version = version
            while drawn < admission.open_until(version):
                groups += [self._begin(drawn * pipeline.groups + k) for k in range(pipeline.groups)]
                drawn += 1
            while (chosen := self._chosen(admission, groups, version)) is None:
                self._changed.clear()
                await self._changed.wait()
            groups = [group for group in groups if group not in chosen]
            async with self._training.one():
                tokens = sum(group.tokens for group in chosen)
                await asyncio.sleep(costs.update_s + tokens * costs.s_per_token / max(costs.gpus, 1))
                await asyncio.sleep(costs.sync_s)
            ages += [version - (group.begun or 0) for group in chosen]
            iterations.append(_now())
        for group in groups:
            for episode in group.episodes:
                episode.cancel()
        return self._prediction(ages, [b - a for a, b in itertools.pairwise(iterations)])

    def _chosen(self, admission: StalenessPolicy, groups: list[_Group], version: int) -> list[_Group] | None:
        wanted = self.pipeline.groups
        if sum(group.ended is not None for group in groups) < wanted:  # the rule would return the same
            return None
        return admission.choose(groups, version, [wanted] * (admission.max_staleness + 1))

    def _begin(self, number: int) -> _Group:
        group = _Group(number)
        size = self.pipeline.group_size
        group.episodes = [asyncio.create_task(self._play(group, number * size + member)) for member in range(size)]
        return group

    async def _play(self, group: _Group, number: int) -> None:
        """Simulates an episode."""
        costs = self.pipeline.episode
        rng = random.Random(derive_seed(self.pipeline.seed, "episode", number))
        worker = self._workers[number % len(self._workers)]
        async with self._room, self._flying.one():
            if group.begun is None:
                group.begun = self._version
            async with self._sandboxes:
                await asyncio.sleep(costs.sandbox_s.draw(rng))
                context = await self._turns(worker, rng)
                await asyncio.sleep(costs.score_s.draw(rng))
            await self._driver.work(self.pipeline.driver_s_per_episode)
        group.tokens += context
        if sum(not episode.done() for episode in group.episodes) == 1:  # the others have ended
            self._endings += 1
            group.ended = self._endings
            self._changed.set()

    async def _turns(self, worker: SimulatedServer, rng: random.Random) -> float:
        """Simulates the turns of an episode. Returns the tokens of its last context."""
        costs = self.pipeline.episode
        fresh = context = costs.prompt_tokens.draw(rng)
        home: SimulatedReplica | None = None
        for _ in range(max(1, round(costs.turns.draw(rng)))):
            await worker.work(self.pipeline.worker_s_per_turn)
            least = self._loads.least()
            stays = home is not None and home.requests.level < least.requests.level + REBALANCE_THRESHOLD
            if home is None or not stays:
                home, fresh = least, context
            reply = max(1.0, costs.reply_tokens.draw(rng))
            async with self._loads.one_more(home):
                await home.generate(context, fresh, reply)
            self._sampled += reply
            await asyncio.sleep(costs.tool_s.draw(rng))
            fresh = costs.observation_tokens.draw(rng)
            context += reply + fresh
        return context

    def _prediction(self, ages: list[int], iterations: list[float]) -> Prediction:
        pipeline, seconds = self.pipeline, max(_now(), 1e-12)
        for busy in [self._flying, self._training, *(replica.requests for replica in self._replicas)]:
            busy.change(0)
        working = sum(replica.requests.time for replica in self._replicas)
        requests = sum(replica.requests.area for replica in self._replicas)
        episodes = pipeline.iterations * pipeline.groups * pipeline.group_size
        return Prediction(
            gpus=pipeline.gpus,
            seconds=seconds,
            episodes_per_s=episodes / seconds,
            tokens_per_s=self._sampled / seconds,
            iteration_s=statistics.median(iterations),
            engines_busy=working / seconds / len(self._replicas),
            batch=requests / max(working, 1e-12),
            trainer_busy=self._training.time / seconds,
            workers_busy=sum(worker.busy.time for worker in self._workers) / seconds / len(self._workers),
            driver_busy=self._driver.busy.time / seconds,
            in_flight=self._flying.area / seconds,
            staleness=statistics.mean(ages),
        )


def _now() -> float:
    return asyncio.get_running_loop().time()
