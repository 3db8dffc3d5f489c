"""What each kind of failure makes of an episode: the failure table of the design, in code.

Failures are never data. An episode that the machinery broke has no reward, enters no baseline and is tried again
from the start; an error of a tool is an observation and ends nothing; a bug in user code is reported once, with
its traceback. When the run stops is decided by budgets, one a cause (`budgets.py`).
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from agentrl.types.engine import ContextOverflow
from agentrl.types.episode import ErrorRecord, Status
from agentrl.types.errors import AgentRLError, InfraError, place_of
from agentrl.types.sandbox import Sandbox, SandboxBroken, SandboxExpired, SandboxLost
from agentrl.types.values import said, text


class LimitReached(Exception):
    """A limit of the episode ended it. `stop` says which: `turns`, `tokens` or `wall`."""

    def __init__(self, stop: str) -> None:
        super().__init__(stop)
        self.stop = stop


@dataclass(frozen=True)
class Verdict:
    """What an exception makes of the episode."""

    status: Status
    retry: bool
    stop: str = ""


def verdict(error: BaseException) -> Verdict:
    """Looks the exception up in the table: first row that fits."""
    match error:
        case LimitReached():
            return Verdict("truncated", retry=False, stop=error.stop)
        case ContextOverflow():
            return Verdict("truncated", retry=False, stop="tokens")
        case SandboxBroken():
            return Verdict("truncated", retry=False, stop="sandbox_broken")
        case SandboxExpired():
            return Verdict("truncated", retry=False, stop="wall")
        case InfraError():
            return Verdict("infra_error", retry=error.retried)
        case _:
            return Verdict("user_error", retry=False)


async def check_answers(sandbox: Sandbox | None) -> None:
    """After a deadline has passed: whether the sandbox is there at all. Else the deadline tells nothing of the agent.

    Raises:
        SandboxLost: it is not, or does not answer.
    """
    if sandbox is not None and not (health := await sandbox.health()).alive:
        raise health.loss or SandboxLost("the sandbox is gone: it does not answer", place=sandbox.label)


class TookTooLong(AgentRLError):
    """User code did not end within the limit of its stage."""


@asynccontextmanager
async def within(seconds: float, what: str, limit: str, sandbox: Sandbox | None) -> AsyncIterator[None]:
    """A deadline for user code. A TimeoutError of its own is not taken for it.

    Args:
        what: ran, in words.
        limit: where the `seconds` are set: `limits.open_s`.
        sandbox: that it may have waited for.

    Raises:
        TookTooLong: it has passed.
        SandboxLost: it has passed, and the sandbox does not answer.
    """
    try:
        async with asyncio.timeout(seconds) as deadline:
            yield
    except TimeoutError as error:
        if not deadline.expired():
            raise
        await check_answers(sandbox)
        raise TookTooLong(f"{what} took longer than {seconds:g} s", remedy=f"raise {limit}") from error


_LONGEST = 8000  # characters: an exception may carry a whole file


def describe(error: BaseException, stage: str) -> ErrorRecord:
    """The record of an exception, with its traceback from user code on."""
    return ErrorRecord(
        kind=type(error).__name__,
        message=said(error)[:_LONGEST],
        stage=stage,
        place=text(place_of(error)),
        traceback=text("".join(traceback.format_exception(error)))[-_LONGEST:],
        cause=error.cause if isinstance(error, InfraError) else "",
    )
