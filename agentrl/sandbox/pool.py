"""A pool: sandboxes made before they are needed, while models decode.

It is a backend like any other, in front of one. What it hands out is always fresh: a sandbox that was used is
destroyed, never cleaned. (That a used sandbox is as new cannot be proven: a process, a file or a poisoned cache may
wait anywhere. A new one costs less than the search.)
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
"""A sandbox that the last schedule does not have makes room for one that it has when it is as old."""


@dataclass
class PoolStats:
    """What a pool did so far, and what it holds now.

    Attributes:
        ready: handed out, complete when they were asked for.
        awaited: handed out, in the making when they were asked for.
        fresh: handed out, not even begun when they were asked for.
        kept: given back untouched, and kept for the next who asks.
        dead: dead, or too old, when they were to be handed out.
        failed: starts that failed; each is raised to whoever asks for that sandbox.
        warm: waiting now, or in the making.
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
        """How well those who asked were served."""
        return f"sandboxes: {self.ready} ready when asked for, {self.awaited} in the making, {self.fresh} not begun"


@dataclass(eq=False)
class _Warm:
    """A sandbox that nobody has used; `task` makes it, or has made it. `wanted`: the last schedule has it."""

    spec: SandboxSpec
    task: asyncio.Task[Sandbox]
    born: float
    wanted: bool = True


class Pool:
    """Keeps sandboxes of a backend ready.

    Args:
        ahead: how many are kept ready or in the making, beyond those in use.
        cap: sandboxes at the same time at most, of all kinds; who asks for one more waits.
        max_idle_s: one that waited longer is replaced; also one that spent a quarter of its `ttl_s` waiting, because
            that clock runs from its making.
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

    # What a backend does

    @property
    def capabilities(self) -> Capabilities:
        """Those of the backend behind."""
        return self.backend.capabilities

    def preflight(self, spec: SandboxSpec) -> None:
        """That of the backend behind."""
        self.backend.preflight(spec)

    async def create(self, spec: SandboxSpec, *, label: str = "") -> Sandbox:
        """As `acquire`, without a deadline of its own: the runner has one."""
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
        """That of the backend behind."""
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

    # What a pool does

    def prefetch(self, schedule: Iterable[SandboxSpec]) -> None:
        """Says what will be asked for, in that order; replaces what was said before. Returns at once.

        At most `ahead` are made in advance; each one that is taken makes room for the next of the schedule. A start
        that fails is raised to whoever asks for that sandbox.
        """
        self._schedule = deque(schedule)
        for warm in self._warm:  # what is left of an earlier schedule serves this one
            warm.wanted = self._unschedule(warm.spec)
        self._refill()

    async def acquire(self, spec: SandboxSpec, *, deadline_s: float = 60.0, label: str = "") -> Sandbox:
        """A sandbox that nobody has used: a ready one, else the first in the making, else a new one.

        Args:
            deadline_s: seconds until it must be there.
            label: whose it is (an episode id), for messages.

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
        """Takes one back; its handle is dead from now on. `sandbox.close()` does the same.

        It is kept for the next only if nothing was ever asked of it but its health. One that was used is destroyed,
        whatever `dirty` says; `dirty` destroys an untouched one, too.
        """
        handle = cast(PooledSandbox, sandbox)
        self._take_back(handle, dirty=dirty)
        if handle.leaving is not None:
            await asyncio.shield(handle.leaving)

    async def settled(self) -> None:
        """Waits until everything that was begun is ready (or failed), and everything used is gone."""
        while tasks := self._making | self._leaving:
            await asyncio.wait(tasks)

    def stats(self) -> PoolStats:
        """The counters as they are now."""
        return dataclasses.replace(self._stats, warm=len(self._warm), in_use=len(self._in_use))

    # How

    async def _next(self, spec: SandboxSpec) -> tuple[_Warm, str]:
        """One that becomes or is complete; waits for room if it must be made, and there is none."""
        while not self._closed:
            if (warm := self._pop(spec)) is not None:
                return warm, "ready" if warm.task.done() else "awaited"
            if self._alive < self.cap:
                self._unschedule(spec)
                return self._begin(spec), "fresh"
            if self._warm:  # of another kind, and in the way
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
        """Destroys one, whoever is cancelled meanwhile."""
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
        """Wakes those who wait for room; they go before the schedule."""
        self._changed.set()
        self._changed = asyncio.Event()
        self._refill()

    def _refill(self) -> None:
        if self._schedule and len(self._warm) >= self.ahead:
            self._retire_unasked()
        while self._schedule and len(self._warm) < self.ahead and self._alive < self.cap and not self._in_want:
            self._warm.append(self._begin(self._schedule.popleft()))

    def _retire_unasked(self) -> None:
        """Tasks have sandboxes of their own: what the tasks of an earlier schedule left would block the next ones."""
        now = time.monotonic()
        for warm in [warm for warm in self._warm if not warm.wanted and now - warm.born >= UNASKED_S]:
            self._warm.remove(warm)
            self._retire(warm)

    def _unschedule(self, spec: SandboxSpec) -> bool:
        """Whether the schedule had one of them."""
        found = spec in self._schedule
        if found:
            self._schedule.remove(spec)
        return found


class PooledSandbox:
    """What a pool hands out: a sandbox of the backend, until it is given back."""

    def __init__(self, pool: Pool, inner: Sandbox, warm: _Warm) -> None:
        self.label, self.spec, self.warm = inner.label, inner.spec, warm
        self.touched = False
        self.leaving: asyncio.Task[None] | None = None
        self._pool = pool
        self._inner: Sandbox | None = inner

    def __getattr__(self, name: str) -> Any:
        """Everything else is the sandbox's own, and leaves it used."""
        self.touched = True
        if self._inner is None:
            raise SandboxLost(f"the sandbox{f' of {self.label}' if self.label else ''} is gone: it was closed")
        return getattr(self._inner, name)

    async def health(self) -> Health:
        """How it is; never raises."""
        return await self._inner.health() if self._inner is not None else Health(alive=False)

    async def close(self) -> None:
        """Gives it back, see `Pool.release`."""
        await self._pool.release(cast(Sandbox, self))

    def detach(self) -> Sandbox:
        """Parts the handle from the sandbox."""
        inner, self._inner = self._inner, None
        assert inner is not None
        return inner

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()
