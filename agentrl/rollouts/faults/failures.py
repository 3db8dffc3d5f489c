"""Failure table: the status of an episode by kind of exception.

Failures are never training data. An episode that fails because of infrastructure has no reward, is in no baseline, and
is retried from the start. A tool's error is an observation and does not end the episode. A bug in user code is reported
once with its traceback. Budgets per cause decide when a run stops (`budgets.py`).
"""

from __future__ import annotations

import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from agentrl.rewards.deadline import ScoringDeadline
from agentrl.sandbox.health import check_answers
from agentrl.types.engine import ContextOverflow
from agentrl.types.episode import ErrorRecord, Status
from agentrl.types.errors import AgentRLError, InfraError, ToolServerEnded, place_of
from agentrl.types.sandbox import Sandbox, SandboxBroken, SandboxExpired
from agentrl.types.values import said, text


class LimitReached(Exception):
    """A limit ended the episode. `stop` names the limit: `turns`, `tokens` or `wall`."""

    def __init__(self, stop: str) -> None:
        super().__init__(stop)
        self.stop = stop


@dataclass(frozen=True)
class Verdict:
    """Outcome of an episode that an exception ended.

    Attributes:
        suspect: whether the same failure in the next attempt is the agent's fault.
    """

    status: Status
    retry: bool
    stop: str = ""
    suspect: bool = False


def verdict(error: BaseException, *, suspected: bool = False) -> Verdict:
    """Looks up an exception in the table; the first matching row wins.

    Args:
        suspected: whether the verdict on an earlier attempt was `suspect`.
    """
    if isinstance(error, BaseExceptionGroup):  # of a TaskGroup, whose other tasks were cancelled: the worst counts
        judged = [verdict(each, suspected=suspected) for each in error.exceptions]
        return max(judged, key=lambda each: _RANK.index(each.status))
    match error:
        case LimitReached():
            return Verdict("truncated", retry=False, stop=error.stop)
        case ContextOverflow():
            return Verdict("truncated", retry=False, stop="tokens")
        case SandboxBroken():
            return Verdict("truncated", retry=False, stop="sandbox_broken")
        case SandboxExpired():
            return Verdict("truncated", retry=False, stop="wall")
        case ToolServerEnded() if suspected:
            return Verdict("truncated", retry=False, stop="tool_broken")
        case ToolServerEnded():
            return Verdict("infra_error", retry=True, suspect=True)
        case InfraError():
            return Verdict("infra_error", retry=error.retried)
        case _:
            return Verdict("user_error", retry=False)


_RANK: list[Status] = ["done", "truncated", "infra_error", "user_error"]


class TookTooLong(AgentRLError):
    """User code exceeded the time limit of its stage."""


@asynccontextmanager
async def within(seconds: float, what: str, limit: str, sandbox: Sandbox | None) -> AsyncIterator[None]:
    """Runs user code under a deadline. A TimeoutError that the code raises itself passes through.

    Args:
        what: description of the code, for messages.
        limit: key of the limit, for example `limits.open_s`.
        sandbox: sandbox that the code may have waited for.

    Raises:
        TookTooLong: the deadline passed.
        SandboxLost: the deadline passed, and the sandbox does not answer.
    """
    try:
        async with ScoringDeadline(seconds) as deadline:
            yield
    except TimeoutError as error:
        if not deadline.expired():
            raise
        await check_answers(sandbox)
        raise TookTooLong(f"{what} took longer than {seconds:g} s", remedy=f"raise {limit}") from error


def raised_in(episode: str, error: BaseException) -> None:
    """Marks an exception with the episode whose conversation raised it first: an agent may drive several episodes."""
    error.__dict__.setdefault(_EPISODE, episode)


def episode_of(error: BaseException) -> str | None:
    """Returns the id of the episode whose conversation raised an exception; of a group, if all were raised there."""
    if isinstance(error, BaseExceptionGroup):
        first, *others = {episode_of(each) for each in error.exceptions}
        return None if others else first
    return getattr(error, _EPISODE, None)


_EPISODE = "_agentrl_episode"
_LONGEST = 8000  # characters; a message may contain a whole file


def describe(error: BaseException, stage: str) -> ErrorRecord:
    """Returns the record of an exception, with the end of its traceback."""
    return ErrorRecord(
        kind=type(error).__name__,
        message=said(error)[:_LONGEST],
        stage=stage,
        place=text(place_of(error)),
        traceback=text("".join(traceback.format_exception(error)))[-_LONGEST:],
        cause=error.cause if isinstance(error, InfraError) else "",
    )
