"""Execution of built-in verifiers, under a budget.

An agent's files, texts and programs may keep its verifier busy, make it raise, or block it. None of that may void the
episode: otherwise failed episodes would leave the baseline, and a policy would learn to void them. So each verifier has
a separate budget. A budget that the agent exhausts, or an error that it causes, gives 0 with a note.

The budget is processor time, which does not depend on the load of the machine, with a cap on wall time. One verifier
per core runs at a time; waiting for a slot is not counted. A verifier that exceeds its wall time is run once more,
alone: on a busy machine the load may be the cause. The second time it is the agent.
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
"""Maximum number of concurrent verifiers on this machine."""

_SHARED_BY = [1]

_log = logging.getLogger(__name__)


class RanOut(Exception):
    """A verifier exceeded its wall time, perhaps because of the load of the machine; the message names the place."""


class Budget:
    """Budget of one run of a verifier.

    Args:
        seconds: wall time.
        final: a program that exceeds its wall time is a result. Otherwise it raises `RanOut`.
        most_s: maximum wall time of one program.

    Attributes:
        cpu_s: limit of the processor time of the sandboxes that its programs run in, and at most their running time:
            parallel use of several cores counts as one.
        spent_s: processor time spent.
    """

    def __init__(self, seconds: float, *, final: bool = True, most_s: float = math.inf) -> None:
        self.deadline = ScoringDeadline(seconds)
        self.cpu_s, self.spent_s, self._ran_s = _SHARE * seconds, 0.0, 0.0
        self.final, self._most_s = final, most_s

    @property
    def used_up(self) -> bool:
        """True if all processor time is spent: no further verdicts follow."""
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
        """Runs a command as `Sandbox.exec` does, with another time limit.

        A program times out when both its wall time and its processor time reach `timeout_s`, or its wall time is five
        times as long. The processor time of all processes in its sandbox counts.

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
    """Returns the budget of the running verifier. A program run from a user's function may take half of its time."""
    seconds = allowed_s() or _DEFAULT_S
    return _BUDGET.get() or Budget(seconds, most_s=seconds / 2)


class _Places:
    """Limits the number of concurrent verifiers."""

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
    """Holds one of the slots for verifiers. Reentrant: a holder does not wait for another one."""
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
    """A built-in verifier reached no verdict because of the agent's files or programs; the message gives the reason."""


async def graded(call: Callable[[], Awaitable[Any]], costs: Sequence[str], sandboxes: Sequence[Sandbox] = ()) -> Any:
    """Runs a built-in verifier. Returns its result.

    Args:
        call: runs the verifier.
        sandboxes: the sandboxes that it runs programs in. It may open more of them.
        costs: resources that it occupies. A verifier with a sandbox holds a slot; one with an engine does not.

    Raises:
        Unverified: the agent prevented a verdict.
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
    """Returns True if the agent's sandbox raised the error, because of its files or an invalid name."""
    if not isinstance(error, OSError | UnicodeError | NulByte):
        return False
    own = getattr(sandbox.read, "__self__", sandbox)  # a pooled sandbox returns the methods of the sandbox behind it
    places = {id(own), id(getattr(own, "wire", own))}
    return any(id(frame.f_locals.get("self")) in places for frame, _ in traceback.walk_tb(error.__traceback__))
