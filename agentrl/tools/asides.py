"""Asides: a tool asks the conversation that called it, and the conversation itself does not get the message."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol


class Aside(Protocol):
    """A conversation, for the calls of one of its replies."""

    async def __call__(self, text: str, role: str, trained: bool) -> str:
        """Asks the speaker one more message, and returns the reply. Neither becomes part of the conversation."""
        ...


_ASIDE: ContextVar[Aside] = ContextVar("aside")


@contextmanager
def asides(aside: Aside) -> Iterator[None]:
    """Lets the calls inside ask."""
    token = _ASIDE.set(aside)
    try:
        yield
    finally:
        _ASIDE.reset(token)


def current_aside() -> Aside | None:
    """The conversation that calls; None outside of an episode."""
    return _ASIDE.get(None)
