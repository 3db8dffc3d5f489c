"""Pool of sandboxes that are made in advance, while models decode.

It wraps a backend and is used like one. It hands out fresh sandboxes only: a used sandbox is destroyed, never cleaned.
(A used sandbox cannot be proven clean: a process, a file or a poisoned cache may hide anywhere. A new one costs less
than the search.)
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, cast

from agentrl.types.clocks.deadline import Deadline
from agentrl.types.sandbox import (
    Backend,
    Capabilities,
    Health,
    Sandbox,
    SandboxLost,
    SandboxSpec,
    SandboxStartFailed,
)

UNASKED_S = 30.0
"""Age at which a sandbox outside the last schedule is replaced by one of the schedule."""


@dataclass
class PoolStats:
    """Counters of a pool, and its current contents.

    Attributes:
        ready: handed out, complete at the request.
        awaited: handed out, being made at the request.
        fresh: handed out, not begun at the request.
        kept: returned untouched, and reused.
        dead: dead, or too old, at the request.
        failed: failed starts; each is raised to the caller that requests the sandbox.
        warm: idle now, or being made.
        in_use: handed out now.
    """

    ready: int = 0
    awaited: int = 0
    fresh: int = 0
    kept: int = 0
    dead: int = 0
    failed: int = 0
    warm: int = 0
    in_use: int = 0

    def sentence(self) -> str:
        """Summarises how well requests were served."""
        return f"sandboxes: {self.ready} ready when asked for, {self.awaited} in the making, {self.fresh} not begun"


@dataclass(eq=False)
class _Warm:
    """Unused sandbox; `task` makes it, or has made it. `wanted`: whether the last schedule has it."""

    spec: SandboxSpec
    task: asyncio.Task[Sandbox]
    born: float
    wanted: bool = True


class Pool:
    """Holds sandboxes of a backend ready.

    Args:
        ahead: number of sandboxes ready or being made, beyond those in use.
        cap: maximum number of sandboxes at the same time, of all kinds; further requests wait.
        max_idle_s: maximum idle time of a sandbox before it is replaced; also a quarter of its `ttl_s`, because that
            clock starts at its creation.
    """

    def __init__(self, backend: Backend, *, ahead: int, cap: int = 1024, max_idle_s: float = 600.0) -> None:
        if ahead < 0 or cap < 1:
            raise ValueError(f"a pool of {ahead} ahead and {cap} at most")
        self.backend = backend
        self.name = backend.name
        self.ahead, self.cap, self.max_idle_s = ahead, cap, max_idle_s
        self._stats = PoolStats()
        self._schedule: deque[SandboxSpec] = deque()
        self._warm: deque[_Warm] = deque()
        self._making: set[asyncio.Task[Sandbox]] = set()
        self._in_use: set[PooledSandbox] = set()
        self._leaving: set[asyncio.Task[None]] = set()
        self._alive = 0  # in any of these states
        self._in_want = 0  # callers that wait for room
        self._changed = asyncio.Event()
        self._closed = False

    # Methods of a backend

    @property
    def capabilities(self) -> Capabilities:
        """Capabilities of the wrapped backend."""
        return self.backend.capabilities

    def preflight(self, spec: SandboxSpec) -> None:
        """Calls `preflight` of the wrapped backend."""
        self.backend.preflight(spec)

    async def create(self, spec: SandboxSpec, *, label: str = "") -> Sandbox:
        """Acquires a sandbox without a deadline: the runner has one."""
        while True:
            warm, how = await self._next(spec)
            self._refill()
            try:
                inner = await asyncio.shield(warm.task)
                alive = how == "fresh" or (await inner.health()).alive
            except asyncio.CancelledError:
                if warm.task.cancelled():
                    raise SandboxStartFailed("the pool was closed") from None
                self._put_back(warm)  # the caller was cancelled: the sandbox is untouched
                raise
            if alive:
                break
            self._stats.dead += 1
            self._leave(inner)
        setattr(self._stats, how, getattr(self._stats, how) + 1)
        inner.label = label
        handle = PooledSandbox(self, inner, warm)
        self._in_use.add(handle)
        return cast(Sandbox, handle)

    async def reap(self, *, dry: bool = False) -> list[str]:
        """Calls `reap` of the wrapped backend."""
        return await self.backend.reap(dry=dry)

    async def close(self) -> None:
        """Closes every sandbox, those in use included, and the backend. May be called twice."""
        self._closed = True
        self._schedule.clear()
        while self._warm:
            self._retire(self._warm.popleft())
        for task in self._making:
            task.cancel()
        for handle in list(self._in_use):
            self._take_back(handle, dirty=True)
        self._notify()
        await self.settled()
        await self.backend.close()

    # Methods of a pool

    def prefetch(self, schedule: Iterable[SandboxSpec]) -> None:
        """Sets the schedule of future requests, in order; replaces the earlier one. Returns at once.

        At most `ahead` are made in advance; each one that is taken makes room for the next of the schedule. A failed
        start is raised to the caller that requests the sandbox.
        """
        self._schedule = deque(schedule)
        for warm in self._warm:  # sandboxes of an earlier schedule are reused
            warm.wanted = self._unschedule(warm.spec)
        self._refill()

    async def acquire(self, spec: SandboxSpec, *, deadline_s: float = 60.0, label: str = "") -> Sandbox:
        """Returns an unused sandbox: a ready one, else the first being made, else a new one.

        Args:
            deadline_s: maximum of seconds to wait.
            label: owner (an episode id), for messages.

        Raises:
            SandboxStartFailed: it did not start, or not in time; or the pool was full all that time.
        """
        try:
            async with Deadline(deadline_s):
                return await self.create(spec, label=label)
        except TimeoutError:
            held = f"{len(self._in_use)} in use, {len(self._warm)} warm, at most {self.cap}"
            raise SandboxStartFailed(f"no sandbox from the pool within {deadline_s:g} s: {held}") from None

    async def release(self, sandbox: Sandbox, *, dirty: bool = False) -> None:
        """Takes a sandbox back; its handle is unusable from then on. `sandbox.close()` does the same.

        It is reused only if nothing but its health was ever requested. A used one is destroyed, whatever `dirty` is;
        `dirty` destroys an untouched one, too.
        """
        handle = cast(PooledSandbox, sandbox)
        self._take_back(handle, dirty=dirty)
        if handle.leaving is not None:
            await asyncio.shield(handle.leaving)

    async def settled(self) -> None:
        """Waits until all pending sandboxes are ready (or failed), and all used ones are gone."""
        while tasks := self._making | self._leaving:
            await asyncio.wait(tasks)

    def stats(self) -> PoolStats:
        """Returns the current counters."""
        return dataclasses.replace(self._stats, warm=len(self._warm), in_use=len(self._in_use))

    # Internals

    async def _next(self, spec: SandboxSpec) -> tuple[_Warm, str]:
        """Returns a sandbox that is complete or being made; waits for room if it must be made and the pool is full."""
        while not self._closed:
            if (warm := self._pop(spec)) is not None:
                return warm, "ready" if warm.task.done() else "awaited"
            if self._alive < self.cap:
                self._unschedule(spec)
                return self._begin(spec), "fresh"
            if self._warm:  # of another kind, and occupying room
                self._retire(self._warm.pop())
            changed = self._changed
            self._in_want += 1
            try:
                await changed.wait()
            finally:
                self._in_want -= 1
        raise SandboxStartFailed("the pool was closed")

    def _pop(self, spec: SandboxSpec) -> _Warm | None:
        idle_s = min(self.max_idle_s, spec.ttl_s / 4)
        for warm in tuple(self._warm):
            if warm.spec is not spec and warm.spec != spec:
                continue
            self._warm.remove(warm)
            if time.monotonic() - warm.born < idle_s:
                return warm
            self._stats.dead += 1
            self._retire(warm)
        return None

    def _begin(self, spec: SandboxSpec) -> _Warm:
        self._alive += 1
        task = asyncio.create_task(self._make(spec))
        self._making.add(task)
        task.add_done_callback(self._made)
        return _Warm(spec, task, time.monotonic())

    async def _make(self, spec: SandboxSpec) -> Sandbox:
        return await self.backend.create(spec, label="pool")

    def _made(self, task: asyncio.Task[Sandbox]) -> None:
        self._making.discard(task)
        if task.cancelled() or task.exception() is not None:
            self._stats.failed += not task.cancelled()
            self._alive -= 1
            self._notify()

    def _put_back(self, warm: _Warm) -> None:
        if self._closed or len(self._warm) >= self.ahead:
            self._retire(warm)
        else:
            self._warm.appendleft(warm)
            self._notify()

    def _take_back(self, handle: PooledSandbox, *, dirty: bool) -> None:
        if handle not in self._in_use:
            return
        self._in_use.discard(handle)
        inner = handle.detach()
        if handle.touched or dirty:
            handle.leaving = self._leave(inner)
        else:
            self._stats.kept += 1
            self._put_back(handle.warm)

    def _retire(self, warm: _Warm) -> None:
        if not warm.task.done():
            warm.task.cancel()
            warm.task.add_done_callback(self._too_late)
        else:
            self._too_late(warm.task)

    def _too_late(self, task: asyncio.Task[Sandbox]) -> None:
        if not task.cancelled() and task.exception() is None:
            self._leave(task.result())

    def _leave(self, inner: Sandbox) -> asyncio.Task[None]:
        """Destroys a sandbox, even if the caller is cancelled."""
        task = asyncio.create_task(self._destroy(inner))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)
        return task

    async def _destroy(self, inner: Sandbox) -> None:
        try:
            await inner.close()
        finally:
            self._alive -= 1
            self._notify()

    def _notify(self) -> None:
        """Wakes the callers that wait for room; they have priority over the schedule."""
        self._changed.set()
        self._changed = asyncio.Event()
        self._refill()

    def _refill(self) -> None:
        if self._schedule and len(self._warm) >= self.ahead:
            self._retire_unasked()
        while self._schedule and len(self._warm) < self.ahead and self._alive < self.cap and not self._in_want:
            self._warm.append(self._begin(self._schedule.popleft()))

    def _retire_unasked(self) -> None:
        """Retires leftovers of earlier schedules: sandboxes differ by task, so they would block the next ones."""
        now = time.monotonic()
        for warm in [warm for warm in self._warm if not warm.wanted and now - warm.born >= UNASKED_S]:
            self._warm.remove(warm)
            self._retire(warm)

    def _unschedule(self, spec: SandboxSpec) -> bool:
        """Removes a spec from the schedule once; True if the schedule had it."""
        found = spec in self._schedule
        if found:
            self._schedule.remove(spec)
        return found


class PooledSandbox:
    """Handle of a pool: a sandbox of the backend, until it is returned."""

    def __init__(self, pool: Pool, inner: Sandbox, warm: _Warm) -> None:
        self.label, self.spec, self.warm = inner.label, inner.spec, warm
        self.touched = False
        self.leaving: asyncio.Task[None] | None = None
        self._pool = pool
        self._inner: Sandbox | None = inner

    def __getattr__(self, name: str) -> Any:
        """Forwards everything else to the sandbox, and marks it as used."""
        self.touched = True
        if self._inner is None:
            raise SandboxLost(f"the sandbox{f' of {self.label}' if self.label else ''} is gone: it was closed")
        return getattr(self._inner, name)

    async def health(self) -> Health:
        """Returns its state; never raises."""
        return await self._inner.health() if self._inner is not None else Health(alive=False)

    async def close(self) -> None:
        """Returns it to the pool, see `Pool.release`."""
        await self._pool.release(cast(Sandbox, self))

    def detach(self) -> Sandbox:
        """Separates the handle from the sandbox."""
        inner, self._inner = self._inner, None
        assert inner is not None
        return inner

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()
