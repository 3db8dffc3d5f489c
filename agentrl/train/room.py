"""Places for episodes in flight, given by rank."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Room:
    """So many places. Whoever waits goes in by rank, the lowest first; equals in the order in which they came."""

    def __init__(self, places: int) -> None:
        self._free = places
        self._waiting: list[tuple[tuple[int, ...], int, asyncio.Future[None]]] = []
        self._numbers = itertools.count()

    @asynccontextmanager
    async def place(self, *rank: int) -> AsyncIterator[None]:
        """Waits for a place, and holds it for the block."""
        if self._free:
            self._free -= 1
        else:
            await self._turn(rank)
        try:
            yield
        finally:
            self._leave()

    async def _turn(self, rank: tuple[int, ...]) -> None:
        turn = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (rank, next(self._numbers), turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # the place was given in the same moment
                self._leave()
            raise

    def _leave(self) -> None:
        while self._waiting:
            *_, turn = heapq.heappop(self._waiting)
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
