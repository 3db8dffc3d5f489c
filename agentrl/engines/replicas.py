"""Load balancing over several servers of one model, with back-off for servers that fail.

A session stays on its server, for its prefix cache, unless that server is down, draining or much busier than another. A
failing server gets no requests for a pause that doubles with each failure, and must pass a health check before it gets
requests again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Self, TypeVar

from pydantic import Field, model_validator

from agentrl.config.sections import MAY_CHANGE, Section
from agentrl.engines.http import HttpClient, Refused
from agentrl.types.errors import EngineError

T = TypeVar("T")

REBALANCE_THRESHOLD = 16
"""A session moves when its server has this many more requests in flight than the least loaded server."""

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
SAY_EVERY_S = 15.0

_log = logging.getLogger(__name__)


class ServerSettings(Section):
    """Settings of an engine that samples on servers."""

    urls: Annotated[list[str], MAY_CHANGE] = Field(
        [], description="URLs of running vLLM servers (empty: start servers), or the base URL of an API, ending in /v1."
    )
    timeout_s: Annotated[float, MAY_CHANGE] = Field(600.0, gt=0, description="Seconds per request.")
    retries: Annotated[int, MAY_CHANGE] = Field(4, ge=0, description="Retries after a failure that may be temporary.")

    @model_validator(mode="after")
    def _have_urls(self) -> Self:
        if bad := [url for url in self.urls if not url.startswith(("http://", "https://"))]:
            raise ValueError(f"{bad[0]!r} is not a URL: write http://HOST:PORT")
        return self


@dataclass(eq=False)
class Replica:
    """State of one server.

    Attributes:
        url: URL without a trailing slash.
        in_flight: number of this engine's pending requests.
        failures: consecutive failures; 0 after a success.
        retry_at: monotonic time in seconds before which it gets no requests.
        unavailable_reason: why it gets no new requests (pending ones may finish); "" if it is available.
        world_size: number of its workers, one per GPU.
    """

    url: str
    in_flight: int = 0
    failures: int = 0
    retry_at: float = 0.0
    unavailable_reason: str = ""
    world_size: int = 1

    def record_failure(self) -> None:
        """Counts a failure and doubles the pause before the next request. Concurrent failures count once."""
        now = time.monotonic()
        if now < self.retry_at:
            return
        self.retry_at = now + min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(self.failures, 16))
        self.failures += 1

    def record_success(self) -> None:
        """Resets failures and pause."""
        self.failures, self.retry_at = 0, 0.0


class Replicas:
    """The servers of one engine.

    Args:
        retries: further attempts after a retryable failure of a request.

    Attributes:
        who: the owner of the servers, for messages: the engine, or an auxiliary policy.
    """

    def __init__(self, urls: Sequence[str], client: HttpClient, *, retries: int) -> None:
        self.all = [Replica(url.rstrip("/")) for url in urls]
        self.client, self.retries = client, retries
        self.who = "the engine"
        self._home: dict[str, Replica] = {}
        self._said_at = -SAY_EVERY_S
        self._answered_at: float | None = None

    def _say(self, error: EngineError) -> None:
        """Logs the failure of a server with the time since the last reply: immediately, and again while it lasts."""
        now = time.monotonic()
        if now - self._said_at < SAY_EVERY_S:
            return
        self._said_at = now
        if self._answered_at is None:
            since = "no reply yet"
        else:
            since = f"the last reply was {now - self._answered_at:.0f} s ago"
        _log.warning("%s: %s: %s; trying again (%s)", self.who, error.place, error.message, since)

    async def post(
        self,
        path: str,
        body: Any,
        kind: type[T],
        *,
        session: str | None = None,
        wrong: Callable[[T], str] | None = None,
    ) -> T:
        """Posts to the session's server, and to others after failures.

        Args:
            wrong: returns why the server of a reply must get no further requests, or "".

        Raises:
            EngineError: every attempt failed.
            Refused: the server rejected the request.
        """
        last: EngineError | None = None
        for _ in range(self.retries + 1):
            replica = self.pick(session) or await self._next(session)
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
                self._say(error)
                last = error
            else:
                replica.record_success()
                self._answered_at = time.monotonic()
                return reply
            finally:
                replica.in_flight -= 1
        assert last is not None
        raise EngineError(
            f"{self.retries + 1} attempts failed, the last: {last.message}",
            place=last.place,
            remedy="see the server's log; engine.retries and engine.timeout_s set the number and the timeout",
        ) from last

    def counts(self) -> list[dict[str, Any]]:
        """Returns a row for each server: pending requests of this engine, failures in succession, and why it gets no
        requests."""
        return [
            {"url": each.url, "running": each.in_flight, "failures": each.failures, "why_not": each.unavailable_reason}
            for each in self.all
        ]

    def end_session(self, session: str) -> None:
        """Drops the assignment of a session to its server."""
        self._home.pop(session, None)

    def pick(self, session: str | None) -> Replica | None:
        """The server for a session's next request; None if no server is available now."""
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
        """Checks a server's `/health`.

        A server that refuses the request counts as healthy: APIs lack this path, and gateways answer unknown paths with
        401, 403 or 405.

        Raises:
            EngineError: the server does not answer, or reports a failure.
        """
        try:
            await self.client.get(f"{replica.url}/health", type(None))
        except Refused as refused:
            if refused.status >= 500:
                raise EngineError(refused.message, place=refused.place) from None

    async def _next(self, session: str | None) -> Replica:
        """The server for the next request. Waits for the first pause to end if all servers are paused."""
        while (replica := self.pick(session)) is None:
            waiting = [replica.retry_at for replica in self.all if not replica.unavailable_reason]
            if not waiting:
                states = "; ".join(f"{replica.url}: {replica.unavailable_reason}" for replica in self.all)
                raise EngineError(f"no server is left: {states}", remedy="restart the servers")
            await asyncio.sleep(max(0.0, min(waiting) - time.monotonic()))
        return replica
