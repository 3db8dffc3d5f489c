"""Closing what a command used, without losing what it came to."""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from typing import Protocol

_log = logging.getLogger(__name__)


class Closable(Protocol):
    """An engine, a backend, a pool, ..."""

    def close(self) -> Awaitable[None]:
        """Frees what it holds."""
        ...


async def close_all(*parts: Closable | None) -> None:
    """Closes each part, in order. A part that cannot be closed is a warning: the result stands, and so does an error
    that is on its way.
    """
    for part in parts:
        if part is None:
            continue
        try:
            await part.close()
        except Exception as error:
            _log.warning("%s could not be closed: %s", type(part).__name__, str(error) or type(error).__name__)
