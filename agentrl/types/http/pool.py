"""Connections to servers, those among them that are idle.

httpcore has a pool of its own, which looks at every connection and every request for each one that begins or ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import httpcore2


class ConnectionPool:
    """Connections of HTTP/1.1, each for one request at a time. A request takes the one that was idle last.

    Args:
        connect: makes a connection to a server; it is opened by its first request.
        most: connections at a time. Further requests wait.
    """

    def __init__(self, connect: Callable[[httpcore2.Origin], httpcore2.AsyncHTTPConnection], most: int) -> None:
        self._connect, self._most = connect, most
        self._free = asyncio.Semaphore(most)
        self._idle: dict[httpcore2.AsyncHTTPConnection, None] = {}
        """The one that has been idle longest comes first."""

    async def send(self, request: httpcore2.Request) -> tuple[httpcore2.Response, httpcore2.AsyncHTTPConnection]:
        """The beginning of an answer, and the connection on which the rest comes, which is to be given back.

        Raises:
            Exception: those of httpcore.
        """
        await self._free.acquire()
        try:
            connection = await self._idle_to(request.url.origin) or self._connect(request.url.origin)
            return await connection.handle_async_request(request), connection
        except BaseException:
            self._free.release()  # httpcore has closed the connection
            raise

    def give_back(self, connection: httpcore2.AsyncHTTPConnection) -> None:
        """The answer was read, or is left: then its connection is closed."""
        self._free.release()
        if connection.is_idle():
            self._idle[connection] = None

    async def close(self) -> None:
        """Closes the idle connections."""
        while self._idle:
            await self._idle.popitem()[0].aclose()

    async def _idle_to(self, origin: httpcore2.Origin) -> httpcore2.AsyncHTTPConnection | None:
        while (connection := self._too_old() or self._last_to(origin)) is not None:
            del self._idle[connection]  # before anyone else runs
            if connection.can_handle_request(origin) and not connection.has_expired():
                return connection
            await connection.aclose()
        return None

    def _too_old(self) -> httpcore2.AsyncHTTPConnection | None:
        oldest = next(iter(self._idle), None)
        return oldest if oldest is not None and (oldest.has_expired() or len(self._idle) > self._most) else None

    def _last_to(self, origin: httpcore2.Origin) -> httpcore2.AsyncHTTPConnection | None:
        return next((each for each in reversed(self._idle) if each.can_handle_request(origin)), None)
