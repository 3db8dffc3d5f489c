"""Asides: side questions of a tool to the policy that called it, which stay out of the conversation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol


class Aside(Protocol):
    """Samples a side reply from the conversation of the current tool calls."""

    async def __call__(self, text: str, role: str, trained: bool) -> str:
        """Sends the policy one more message and returns its reply. The conversation stores neither."""
        ...


_ASIDE: ContextVar[Aside] = ContextVar("aside")


@contextmanager
def asides(aside: Aside) -> Iterator[None]:
    """Makes `aside` available to the tool calls inside the context."""
    token = _ASIDE.set(aside)
    try:
        yield
    finally:
        _ASIDE.reset(token)


def current_aside() -> Aside | None:
    """Returns the aside of the calling conversation; None outside of an episode."""
    return _ASIDE.get(None)
