"""Several servers of one model: who gets which request, and what happens to those that fail.

A session stays with its server, whose prefix cache holds its history, unless that server is down, draining or much
busier than another. A server that fails is left alone for a while, twice as long after each further failure, and is
asked for its health before it gets work again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from agentrl.engines.http import HttpClient, Refused
from agentrl.types.errors import EngineError

T = TypeVar("T")

REBALANCE_THRESHOLD = 16
"""A session leaves its server when that has so many more requests in flight than the least loaded one."""

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0


@dataclass(eq=False)
class Replica:
    """One server.

    Attributes:
        url: without a slash at the end.
        in_flight: requests that it works on for us.
        failures: in a row; 0 after a success.
        retry_at: monotonic time before which it gets no work.
        unavailable_reason: why it gets no new requests (those in flight end as they may); "" if it does.
        world_size: its workers, one a GPU.
    """

    url: str
    in_flight: int = 0
    failures: int = 0
    retry_at: float = 0.0
    unavailable_reason: str = ""
    world_size: int = 1

    def record_failure(self) -> None:
        """Counts a failure: the pause before the next request doubles. Requests that fail together count once."""
        now = time.monotonic()
        if now < self.retry_at:
            return
        self.retry_at = now + min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(self.failures, 16))
        self.failures += 1

    def record_success(self) -> None:
        """Counts a success: nothing is held against it any more."""
        self.failures, self.retry_at = 0, 0.0


class Replicas:
    """The servers of one engine.

    Args:
        retries: further attempts of a request that failed for a reason that may pass.
    """

    def __init__(self, urls: Sequence[str], client: HttpClient, *, retries: int) -> None:
        self.all = [Replica(url.rstrip("/")) for url in urls]
        self.client, self.retries = client, retries
        self._home: dict[str, Replica] = {}

    async def post(
        self,
        path: str,
        body: Any,
        kind: type[T],
        *,
        session: str | None = None,
        wrong: Callable[[T], str] | None = None,
    ) -> T:
        """Posts to a server that fits the session, after failures to others.

        Args:
            wrong: says of a reply why its server is to get no further requests; "": it is well.

        Raises:
            EngineError: every attempt failed.
            Refused: the request is wrong.
        """
        last: EngineError | None = None
        for _ in range(self.retries + 1):
            replica = await self._next(session)
            replica.in_flight += 1
            try:
                if replica.failures:
                    await self.check_health(replica)
                reply = await self.client.post(replica.url + path, body, kind)
                if wrong is not None and (why := wrong(reply)):
                    replica.unavailable_reason = why
                    raise EngineError(why, place=replica.url)
            except EngineError as error:
                replica.record_failure()
                last = error
            else:
                replica.record_success()
                return reply
            finally:
                replica.in_flight -= 1
        assert last is not None
        raise EngineError(
            f"{self.retries + 1} attempts failed, the last: {last.message}",
            place=last.place,
            remedy="look into the server's log; engine.retries and engine.timeout_s set the patience",
        ) from last

    def end_session(self, session: str) -> None:
        """Forgets where a session is at home."""
        self._home.pop(session, None)

    def pick(self, session: str | None) -> Replica | None:
        """The server for a session among those that get work now; None if there is none."""
        now = time.monotonic()
        ready = [replica for replica in self.all if not replica.unavailable_reason and replica.retry_at <= now]
        if not ready:
            return None
        least = min(ready, key=lambda replica: replica.in_flight)
        home = self._home.get(session) if session is not None else None
        stays = home is not None and home in ready and home.in_flight < least.in_flight + REBALANCE_THRESHOLD
        chosen = home if home is not None and stays else least
        if session is not None:
            self._home[session] = chosen
        return chosen

    async def check_health(self, replica: Replica) -> None:
        """Asks a server whether it lives.

        Raises:
            EngineError: it does not answer, or says no.
        """
        try:
            await self.client.get(f"{replica.url}/health", type(None))
        except Refused as refused:
            if refused.status != 404:  # It has no such page, but it answers.
                raise EngineError(refused.message, place=refused.place) from None

    async def _next(self, session: str | None) -> Replica:
        """A server that gets work; waits for the first that may, if all of them are left alone."""
        while (replica := self.pick(session)) is None:
            waiting = [replica.retry_at for replica in self.all if not replica.unavailable_reason]
            if not waiting:
                states = "; ".join(f"{replica.url}: {replica.unavailable_reason}" for replica in self.all)
                raise EngineError(f"no server is left: {states}", remedy="restart the servers")
            await asyncio.sleep(max(0.0, min(waiting) - time.monotonic()))
        return replica
