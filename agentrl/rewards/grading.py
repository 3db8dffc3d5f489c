"""The one place where built-in verifiers run.

What an agent leaves behind may keep its verifier busy, make it raise, or let it sleep. None of that may void the
episode: then losing episodes would leave the baseline, and a policy learns to void them. So a verifier has a budget of
its own. What the agent's files, texts and programs make it spend or raise is a 0 with a note.

The budget is processor time, which does not depend on the load of the machine, with a cap on wall time. As many verify
at once as there are cores; waiting for a place counts nowhere. A verifier that ran out of wall time is run once more,
while no other runs: on a busy machine that was the machine's fault. The second time is the agent's.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from agentrl.rewards.deadline import ScoringDeadline, allowed_s, uncounted
from agentrl.sandbox.health import check_answers
from agentrl.sandbox.toolbox.wire import NulByte
from agentrl.types.errors import AgentRLError, EngineError, asked_to_stop, place_of
from agentrl.types.sandbox import ExecResult

if TYPE_CHECKING:
    from agentrl.types.sandbox import Sandbox

PATIENCE = 5.0
"""Wall time that a program of a verifier has, as a multiple of its processor time."""

_SHARE = 0.8
"""Processor time of a verifier, as a share of `limits.score_s`, which is its wall time."""

_DEFAULT_S = 300.0  # of `limits.score_s`, where a verifier runs outside of a run
_LOOK_S = 0.2  # the shortest pause between two looks at the processor time
CORES = max(1, len(os.sched_getaffinity(0)))
"""How many verify at once on this machine."""

_SHARED_BY = [1]

_log = logging.getLogger(__name__)


class RanOut(Exception):
    """A verifier ran out of wall time, perhaps because of what else ran; the message says where."""


class Budget:
    """What one run of a verifier may spend.

    Args:
        seconds: wall time.
        final: whether a program that ran out of wall time is a result. Otherwise it is `RanOut`.
        most_s: the longest that patience with one program may take.

    Attributes:
        cpu_s: processor time of the sandboxes that its programs run in. It counts as spent while they also run: what
            several cores do at once is no more than what one does.
        spent_s: processor time that they took.
    """

    def __init__(self, seconds: float, *, final: bool = True, most_s: float = math.inf) -> None:
        self.deadline = ScoringDeadline(seconds)
        self.cpu_s, self.spent_s, self._ran_s = _SHARE * seconds, 0.0, 0.0
        self.final, self._most_s = final, most_s

    @property
    def used_up(self) -> bool:
        """Whether all processor time is spent: what has no verdict yet does not get one."""
        return self._left_s <= 0

    @property
    def _left_s(self) -> float:
        return self.cpu_s - min(self.spent_s, self._ran_s)

    async def exec(
        self,
        sandbox: Sandbox,
        command: str | Sequence[str],
        *,
        timeout_s: float,
        beside: Sequence[Sandbox] = (),
        **settings: Any,
    ) -> ExecResult:
        """As `Sandbox.exec`, but for the time limit.

        A program times out when it has both run and computed for `timeout_s`, or has run five times as long. What its
        sandbox computes counts, whichever process does it.

        Args:
            beside: sandboxes that compute for the program.

        Raises:
            RanOut: it ran out of wall time, and this run of the verifier is not the final one.
        """
        boxes = (sandbox, *beside)
        before = _cpu_of(boxes)
        limit = min(timeout_s, max(self._left_s, 0.01))
        most_s = max(timeout_s, min(PATIENCE * timeout_s, self._most_s))
        clock = asyncio.get_running_loop().time
        began, running = clock(), asyncio.ensure_future(sandbox.exec(command, timeout_s=most_s, **settings))
        try:
            result = await self._watched(running, boxes, before, limit)
        finally:
            running.cancel()
        if (now := _cpu_of(boxes)) is not None and before is not None:
            self.spent_s += now - before
        self._ran_s += clock() - began
        if result is None:
            await asyncio.wait([running])
            return ExecResult(None, "timeout", stderr=f"{limit:g} s of processor time are spent".encode())
        if result.outcome == "timeout" and not self.final:
            raise RanOut(f"a program did not end within {most_s:g} s")
        return result

    async def _watched(
        self, running: asyncio.Future[ExecResult], boxes: Sequence[Sandbox], before: float | None, limit: float
    ) -> ExecResult | None:
        """The result of a program; None once it has both run and computed for `limit` seconds."""
        clock = asyncio.get_running_loop().time
        began, pause = clock(), max(limit, _LOOK_S)
        while not (await asyncio.wait([running], timeout=pause))[0]:
            now = _cpu_of(boxes)
            left = limit if now is None or before is None else limit - (now - before)
            if left <= 0 and clock() - began >= limit:
                return None
            pause = max(_LOOK_S, left / CORES)
        return running.result()


def _cpu_of(sandboxes: Sequence[Sandbox]) -> float | None:
    """Processor time that sandboxes took so far; None where one of them is not counted."""
    used = [sandbox.cpu_s() for sandbox in sandboxes]
    return None if None in used else sum(each or 0.0 for each in used)


_BUDGET: ContextVar[Budget | None] = ContextVar("budget of a verifier", default=None)


def budget() -> Budget:
    """That of the verifier that runs. One that a function of the user calls leaves that half of its time."""
    seconds = allowed_s() or _DEFAULT_S
    return _BUDGET.get() or Budget(seconds, most_s=seconds / 2)


class _Places:
    """Bounds how many verify at once."""

    def __init__(self, number: int) -> None:
        self._number, self._free, self._alone = number, asyncio.Semaphore(number), asyncio.Lock()

    @asynccontextmanager
    async def taken(self, *, alone: bool) -> AsyncIterator[None]:
        """One of them, or all. No deadline runs while it waits."""
        async with AsyncExitStack() as held:
            with uncounted():
                if alone:
                    await held.enter_async_context(self._alone)
                for _ in range(self._number if alone else 1):
                    await held.enter_async_context(self._free)
            yield


_OF_LOOP: WeakKeyDictionary[asyncio.AbstractEventLoop, _Places] = WeakKeyDictionary()
_HOLDS: ContextVar[bool] = ContextVar("holds a place", default=False)


def share_places(processes: int) -> None:
    """Leaves this process its part of the places, where so many processes of one machine verify."""
    _SHARED_BY[0] = processes


@asynccontextmanager
async def place(*, alone: bool = False) -> AsyncIterator[None]:
    """Holds one of the places for what computes to verify; who holds one already needs no other."""
    if _HOLDS.get():
        yield
        return
    places = _OF_LOOP.setdefault(asyncio.get_running_loop(), _Places(max(1, CORES // _SHARED_BY[0])))
    async with places.taken(alone=alone):
        before = _HOLDS.set(True)
        try:
            yield
        finally:
            _HOLDS.reset(before)


@contextmanager
def _budget_of(one: Budget) -> Iterator[None]:
    before = _BUDGET.set(one)
    try:
        yield
    finally:
        _BUDGET.reset(before)


class Unverified(Exception):
    """A built-in verifier has no verdict because of what the agent left; the message says why."""


async def graded(call: Callable[[], Awaitable[Any]], costs: Sequence[str], sandboxes: Sequence[Sandbox] = ()) -> Any:
    """What a built-in verifier returns.

    Args:
        call: runs it.
        sandboxes: those that it runs programs in. It may open more of them.
        costs: what it occupies. One that needs a sandbox holds a place; one that needs an engine waits for others.

    Raises:
        Unverified: the agent kept it from a verdict.
        SandboxLost: a sandbox does not answer.
        EngineError: an engine took longer than `limits.score_s`.
        AgentRLError: the recipe, the task or the machinery is at fault.
    """
    seconds, why = allowed_s() or _DEFAULT_S, ""
    with uncounted():
        for final in (False, True):
            one = Budget(seconds, final=final)
            try:
                if "sandbox" not in costs and not final:
                    return await _run(call, one)
                async with place(alone=final):
                    return await _run(call, one)
            except RanOut as problem:
                why = str(problem)
                for sandbox in sandboxes:
                    await check_answers(sandbox)
                if "engine" in costs:
                    raise EngineError(why, remedy="raise limits.score_s, or look at the server") from None
            except (AgentRLError, Unverified):
                raise
            except BaseException as error:
                if asked_to_stop(error) or place_of(error):  # a function of the user that the verifier called
                    raise
                _log.warning("a verifier raised %s: %s: the episode gets 0", type(error).__name__, str(error)[:300])
                raise Unverified(f"the verifier raised {type(error).__name__}: {str(error)[:300]}") from error
    raise Unverified(f"timeout: {why}")


async def _run(call: Callable[[], Awaitable[Any]], one: Budget) -> Any:
    try:
        with _budget_of(one):
            async with one.deadline:
                return await call()
    except TimeoutError:
        if not one.deadline.expired():
            raise
        raise RanOut(f"no verdict within limits.score_s ({one.deadline.seconds:g} s)") from None


def left_behind(error: BaseException, sandbox: Sandbox) -> bool:
    """Whether the agent's sandbox raised the error, because of its files or an invalid name."""
    if not isinstance(error, OSError | UnicodeError | NulByte):
        return False
    own = getattr(sandbox.read, "__self__", sandbox)  # a pooled sandbox returns the methods of the sandbox behind it
    places = {id(own), id(getattr(own, "wire", own))}
    return any(id(frame.f_locals.get("self")) in places for frame, _ in traceback.walk_tb(error.__traceback__))
