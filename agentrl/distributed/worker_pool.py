"""The worker pool: the driver's view of the rollout workers.

An episode goes to the worker with the fewest episodes in flight. The worker returns the whole episode. If the worker
dies, another one runs the episode from the start. Only the driver stores episodes, so each is stored once. Dead workers
are replaced while `scale.restarts` last. Handles find frozen processes (`pulse.py`); the pool pings event loops:
one that user code has blocked for longer than any deadline of an episode does not come back.

Any episode of a dead worker may have crashed it. In its last attempt an episode therefore has a worker to itself, so
that an episode that crashes workers takes no other episode with it.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import msgspec

from agentrl.config.limits import Limits
from agentrl.config.recipe import Recipe
from agentrl.config.scale import ScaleSettings
from agentrl.distributed.gateway import Gateway
from agentrl.distributed.handle import Handle, Launcher, ResourceRequest, WorkerDied, spawn_within
from agentrl.distributed.launchers import check_launcher, open_launcher
from agentrl.distributed.pulse import silence
from agentrl.distributed.worker import Attached, Played, RolloutWorker, Scripted, Served, Setting, Source
from agentrl.rollouts.auxiliary.open import open_policies
from agentrl.rollouts.builder import Parts
from agentrl.rollouts.context import RolloutContext
from agentrl.rollouts.conversation.policies import EpisodePolicies
from agentrl.rollouts.runner import EpisodeRunners, LocalRunners, check_expected
from agentrl.rollouts.specs import EpisodeSpec
from agentrl.types.clocks.deadline import Deadline
from agentrl.types.closing import close_all
from agentrl.types.engine import Engine
from agentrl.types.episode import Episode, ErrorRecord
from agentrl.types.errors import AgentRLError, InfraError, RecipeError
from agentrl.types.sandbox import Backend

LOOPBACK = ("127.0.0.1", "localhost", "::1")
"""Workers on other machines cannot reach servers at these addresses."""


class WorkersGone(AgentRLError):
    """All workers died and no restart is left. Finished episodes are stored; the same command adds the missing ones."""


@asynccontextmanager
async def open_runners(parts: Parts, *, trains: bool = False) -> AsyncIterator[EpisodeRunners]:
    """The runners of a recipe's episodes: a worker pool, or this process with a sandbox backend.

    Args:
        trains: as for `open_policies`.
    """
    pool = WorkerPool(parts.recipe) if parts.recipe.scale.rollout_workers else None
    backend = await asyncio.to_thread(parts.open_backend) if pool is None else None
    try:
        if pool is not None:
            yield pool
        else:
            async with open_policies(parts, trains=trains) as speakers:
                yield LocalRunners(backend, speakers)
    finally:
        await close_all(pool, backend)


@dataclass(eq=False)
class _Worker:
    """One worker of the pool.

    Attributes:
        handle: task of the launcher's `spawn`; fails if the worker does not start.
        playing: number of episodes in flight.
        kept: reserved for one episode that has to run alone; it gets no others.
        prepared: the call of `RolloutWorker.prepare` for each setting.
        watching: pings its event loop.
        blocked: why its event loop counts as blocked.
    """

    name: str
    handle: asyncio.Task[Handle]
    watching: asyncio.Task[None] | None = None
    blocked: str = ""
    playing: int = 0
    kept: bool = False
    prepared: dict[Setting, asyncio.Task[None]] = field(default_factory=dict)


class WorkerPool:
    """Rollout workers for one recipe. Each has its own sandboxes. They start with the first episode."""

    backend: Backend | None = None
    speakers: EpisodePolicies | None = None

    def __init__(self, recipe: Recipe) -> None:
        check_launcher(recipe.scale, recipe.base)
        self.settings, self._folder, self._limits = recipe.scale, recipe.base, recipe.limits
        # Each worker has the full concurrency: the last one alive runs all episodes.
        alone = recipe.model_copy(update={"scale": ScaleSettings()})
        self._recipe = json.loads(alone.model_dump_json())
        self._base = str(recipe.base.resolve())
        self._launcher: Launcher | None = None
        self._gateway: Gateway | None = None
        self._workers: list[_Worker] = []
        self._started, self._restarts = 0, 0
        self._last = ""
        self._closings: set[asyncio.Task[None]] = set()
        self._opening: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    def for_context(self, context: RolloutContext) -> PooledRunner:
        """A runner for episodes that share `context`."""
        return PooledRunner(self, context)

    async def play(self, context: RolloutContext, spec: EpisodeSpec) -> Sequence[Episode]:
        """Runs one episode, and its forks, on the least busy worker.

        If that worker dies, the episode restarts on another one; in its last attempt it has a worker to itself. After
        `limits.retries` + 1 deaths the episode has the status `infra_error`.

        Raises:
            WorkersGone: all workers died and no restart is left.
        """
        for deaths in range(context.limits.retries + 1):
            context.on_stage(spec.id, "waits for a worker")
            suspect = 0 < deaths == context.limits.retries
            worker = await self._worker(alone=suspect)
            worker.playing += 1
            context.on_stage(spec.id, worker.name)
            try:
                async with Deadline(longest_episode(context.limits) * (1 + context.make_agent().forks)):
                    played = await self._play(worker, context, spec)
            except (WorkerDied, TimeoutError) as error:
                why = "did not answer in time" if isinstance(error, TimeoutError) else worker.blocked
                died = WorkerDied(why, place=worker.name) if why else error
                self._replace(worker, str(died))
                final = deaths == context.limits.retries
                failure = ErrorRecord(kind="WorkerDied", message=str(died), stage="worker")
                record = {"episode": spec.id, "attempt": deaths, "status": "infra_error", "final": final}
                context.on_failure({**record, **msgspec.structs.asdict(failure)})
                continue
            finally:
                worker.playing -= 1
                worker.kept = worker.kept and not suspect
                self._notice()
                context.on_stage(spec.id, None)
            for each in played.failures:
                context.on_failure({**each, "attempt": each["attempt"] + deaths})
            for stall in played.stalls:
                context.on_stall(stall)
            if context.put_blob is not None:
                for blob in played.blobs:
                    context.put_blob(blob)
            return [msgspec.structs.replace(each, attempt=each.attempt + deaths) for each in played.tree]
        failed = Episode(
            id=spec.id, group_id=spec.group_id, task=spec.task, iteration=spec.iteration, split=spec.split,
            attempt=deaths, status="infra_error", prompt=[], nodes=[], turns=[], error=failure,
            temperature=context.sampling.temperature, trainable=context.engine.trainable,
            created_at=time.time(),
        )  # fmt: skip
        return [failed]

    async def _play(self, worker: _Worker, context: RolloutContext, spec: EpisodeSpec) -> Played:
        handle = await asyncio.shield(worker.handle)
        setting = Setting(await self._source(context.engine), context.sampling.temperature)
        if setting not in worker.prepared:
            tokenizer = context.renderer.tokenizer
            worker.prepared[setting] = asyncio.create_task(handle.call("prepare", setting, tokenizer))
        try:
            await asyncio.shield(worker.prepared[setting])
        except WorkerDied:
            raise
        except InfraError as error:  # it cannot reach a server or start a sandbox; another worker may
            raise WorkerDied(f"cannot get ready: {error}", place=worker.name) from error
        played: Played = await handle.call("play", setting, spec)
        return played

    async def _source(self, engine: Engine) -> Source:
        """Returns the source of completions for workers: run its script, connect to its servers, or use the gateway."""
        assert self._launcher is not None
        if engine.script_name:
            return Scripted(engine.script_name)
        urls = await engine.attachable()
        if urls is not None and (self._launcher.host in LOOPBACK or not any(map(_of_this_machine, urls))):
            return Attached(tuple(urls))
        if engine.reads_messages:  # the gateway passes on tokens only
            remote = "workers on other machines cannot reach a server at 127.0.0.1"
            raise RecipeError(
                remote if urls is not None else f"workers cannot reach {engine.name}, which reads messages, not tokens",
                place="engine.urls",
                remedy="use an address that they can reach, or set scale.use: process, or no workers",
            )
        await engine.start()
        if self._gateway is None:
            self._gateway = Gateway(self._launcher.host)
        url = await self._gateway.url(engine)
        return Served(url, self._gateway.token, engine.name, engine.trainable, engine.max_context)

    async def _worker(self, *, alone: bool) -> _Worker:
        """The started worker with the fewest episodes in flight. With `alone`, waits until it has none."""
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())
        await asyncio.shield(self._opening)
        kept: _Worker | None = None
        try:
            while True:
                self._bury()
                if kept is None or kept not in self._workers:
                    free = [worker for worker in self._workers if worker.handle.done() and not worker.kept]
                    kept = min(free, key=lambda worker: worker.playing, default=None)
                    if kept is not None and not alone:
                        return kept
                    if kept is not None:
                        kept.kept = True  # it gets no further episodes
                if kept is not None and not kept.playing:
                    return kept
                starting = [worker.handle for worker in self._workers if not worker.handle.done()]
                changed = asyncio.create_task(self._changed.wait())
                try:
                    await asyncio.wait([*starting, changed], return_when=asyncio.FIRST_COMPLETED)
                finally:
                    changed.cancel()
        except BaseException:
            if kept is not None and alone:
                kept.kept = False
                self._notice()
            raise

    def _bury(self) -> None:
        """Replaces workers that did not start.

        Raises:
            WorkersGone: all workers died and no restart is left.
            Exception: a worker could not build the recipe.
        """
        for worker in list(self._workers):
            if worker.handle.done() and (error := worker.handle.exception()) is not None:
                if not isinstance(error, WorkerDied):
                    raise error
                self._replace(worker, str(error))
        if not self._workers:
            raise WorkersGone(
                f"all {self._started} workers died, {self._restarts} of them replacements; the last: {self._last}",
                place="scale",
                remedy="fix the cause and run the same command again: it adds the missing episodes; "
                "or raise scale.restarts",
            )

    def _notice(self) -> None:
        """Wakes the episodes that wait for a worker."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def _open(self) -> None:
        """Starts the workers and waits for all: otherwise the first one to start would get all episodes."""
        request = ResourceRequest(
            "scale.rollout_workers", self.settings.rollout_workers, cpus=self.settings.worker_cpus
        )
        launcher = self._launcher = await open_launcher(self.settings, self._folder, request)
        for _ in range(self.settings.rollout_workers):
            self._start(launcher)
        await asyncio.wait([worker.handle for worker in self._workers])

    def _start(self, launcher: Launcher) -> None:
        name = f"worker {self._started}"
        self._started += 1
        worker = _Worker(name, asyncio.create_task(self._spawn(launcher, name)))
        worker.watching = asyncio.create_task(self._watch(worker))
        self._workers.append(worker)

    async def _spawn(self, launcher: Launcher, name: str) -> Handle:
        beside = self.settings.rollout_workers if self.settings.use == "process" else 1
        given = self._recipe, self._base, beside
        return await spawn_within(self.settings.start_s, launcher, name, RolloutWorker, *given)

    async def _watch(self, worker: _Worker) -> None:
        with suppress(Exception):  # it is gone, or did not start: its episodes see to it
            handle = await asyncio.shield(worker.handle)
            worker.blocked = f"its event loop {await silence(lambda: handle.call('beat'), longest_stage(self._limits))}"
            self._replace(worker, worker.blocked)

    def _replace(self, worker: _Worker, why: str) -> None:
        """Replaces a dead worker. Called by each of its episodes; only the first call has an effect."""
        if worker not in self._workers:
            return
        self._workers.remove(worker)
        self._last = why
        closing = asyncio.create_task(_close(worker))
        self._closings.add(closing)
        closing.add_done_callback(self._closings.discard)
        if self._launcher is not None and self._restarts < self.settings.restarts:
            self._restarts += 1
            self._start(self._launcher)
        self._notice()

    async def close(self) -> None:
        """Closes the workers and cancels their episodes."""
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        await asyncio.gather(*(_close(worker) for worker in self._workers), *self._closings)
        self._workers.clear()
        if self._gateway is not None:
            await self._gateway.close()
        if self._launcher is not None:
            await self._launcher.close()


class PooledRunner:
    """Runs episodes on the workers of a pool."""

    def __init__(self, pool: WorkerPool, context: RolloutContext) -> None:
        self._pool, self._context = pool, context

    def expect(self, items: Sequence[EpisodeSpec]) -> None:
        """Checks the specs (see `check_expected`)."""
        check_expected(self._context, items)

    async def play(self, item: EpisodeSpec) -> Sequence[Episode]:
        """Runs one episode. Raises the errors of `WorkerPool.play`."""
        return await self._pool.play(self._context, item)


async def _close(worker: _Worker) -> None:
    if worker.watching is not None:
        worker.watching.cancel()
    worker.handle.cancel()  # if it is still starting
    (handle,) = await asyncio.gather(worker.handle, return_exceptions=True)
    for preparing in worker.prepared.values():
        preparing.cancel()
    if not isinstance(handle, BaseException):
        await handle.close()
    await asyncio.gather(*worker.prepared.values(), return_exceptions=True)


def _of_this_machine(url: str) -> bool:
    return urlsplit(url).hostname in LOOPBACK


def longest_stage(limits: Limits) -> float:
    """The longest deadline of a stage of an episode, in seconds."""
    return max(
        limits.sandbox_s, limits.open_s, limits.episode_s, limits.generate_s, limits.score_s, limits.close_s
    )  # fmt: skip


def longest_episode(limits: Limits) -> float:
    """Upper bound of an episode's duration in seconds: the sum of the deadlines of all stages and attempts."""
    attempt = 4 * limits.sandbox_s + limits.open_s + limits.episode_s + limits.generate_s + limits.score_s
    closing = 20 * limits.close_s  # tools and sandbox, one after another
    return (limits.retries + 1) * (attempt + closing + limits.backoff_s * 2.0**limits.retries)
