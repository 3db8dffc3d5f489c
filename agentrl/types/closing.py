"""Closing what a command used, without losing what it came to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol


class Closable(Protocol):
    """An engine, a backend, a pool, ..."""

    def close(self) -> Awaitable[None]:
        """Frees what it holds."""
        ...


async def close_all(note: Callable[[str], None], *parts: Closable | None) -> None:
    """Closes each part, in order. A part that cannot be closed is a warning: the result stands, and so does an error
    that is on its way.

    Args:
        note: takes the warning, a line.
    """
    for part in parts:
        if part is None:
            continue
        try:
            await part.close()
        except Exception as error:
            note(f"warning: {type(part).__name__} could not be closed: {str(error) or type(error).__name__}")
