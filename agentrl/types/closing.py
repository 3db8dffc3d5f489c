"""Closes the resources of a command without losing its result."""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from typing import Protocol

_log = logging.getLogger(__name__)


class Closable(Protocol):
    """An engine, a backend, a pool, ..."""

    def close(self) -> Awaitable[None]:
        """Frees its resources."""
        ...


async def close_all(*parts: Closable | None) -> None:
    """Closes each part, in order. A failure to close is logged as a warning: the result of the command is unaffected,
    as is an exception that is propagating.
    """
    for part in parts:
        if part is None:
            continue
        try:
            await part.close()
        except Exception as error:
            _log.warning("%s could not be closed: %s", type(part).__name__, str(error) or type(error).__name__)
