"""Deadlines of scoring, paused while a verifier waits for its slot."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Self

from agentrl.types.clocks.deadline import Deadline


class ScoringDeadline(Deadline):
    """Deadline that `uncounted` pauses.

    Attributes:
        seconds: time limit of the block.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds
        self._before: Token[tuple[ScoringDeadline, ...]]  # since `__aenter__`

    async def __aenter__(self) -> Self:
        self._before = _RUNNING.set((*_RUNNING.get(), self))
        return await super().__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        _RUNNING.reset(self._before)
        await super().__aexit__(kind, error, traceback)


_RUNNING: ContextVar[tuple[ScoringDeadline, ...]] = ContextVar("deadlines of scoring", default=())


def allowed_s() -> float | None:
    """The seconds of the outermost deadline, which is `limits.score_s`; None outside of any."""
    running = _RUNNING.get()
    return running[0].seconds if running else None


@contextmanager
def uncounted() -> Iterator[None]:
    """Pauses all enclosing deadlines during the block."""
    with ExitStack() as stopped:
        for deadline in _RUNNING.get():
            stopped.enter_context(deadline.stopped())
        yield
