"""HTTP for engines: one aiohttp session, JSON by msgspec, and errors that say whether trying again can help.

msgspec decodes straight into the types below the engines, so that a reply is parsed and checked in one pass.
"""

from __future__ import annotations

import asyncio
import resource
from typing import Any, TypeVar

import aiohttp
import msgspec

from agentrl.types.errors import EngineError, InfraError

T = TypeVar("T")

TRY_AGAIN = {408, 409, 425, 429, 500, 502, 503, 504, 529}
"""Statuses of a server that is busy, starting or broken. Any other refusal would be the same the next time."""


REMEDIES = {
    401: "the server wants a key: engine.api_key_env names the variable that holds it",
    403: "the key is not allowed to do that, or engine.urls names the wrong server",
    404: "the server has no such page or model: look at engine.urls, engine.model, and whether it was restarted with "
    "another model",
    413: "the request is too long for the server, or for a proxy before it: raise its limit, or shorten observations",
}
"""What helps against a refusal, by status; against others: what the server says."""


class Refused(InfraError):
    """The server understood and refuses: asking again does not help, and no other server would differ."""

    cause = "refusal"
    retried = False

    def __init__(self, status: int, text: str, url: str) -> None:
        self.status, self.text = status, text
        super().__init__(
            f"the server refused with status {status}: {text[:500]}", place=url, remedy=REMEDIES.get(status)
        )


class HttpClient:
    """Requests and typed replies.

    The aiohttp session is made by the first request, because it belongs to the event loop that runs then.

    Args:
        timeout_s: of one request, from first byte sent to last byte received.
        headers: sent with every request.
    """

    def __init__(self, *, timeout_s: float, headers: dict[str, str] | None = None) -> None:
        self._timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=min(30.0, timeout_s))
        self._headers = {"Content-Type": "application/json", **(headers or {})}
        self._session: aiohttp.ClientSession | None = None

    async def post(self, url: str, body: Any, kind: type[T]) -> T:
        """Sends `body` as JSON; the reply as a `kind`.

        Raises:
            EngineError: no reply, or one that asks for patience; the same request may succeed later or elsewhere.
            Refused: the request is wrong for this server.
        """
        return await self._request("POST", url, msgspec.json.encode(body), kind)

    async def get(self, url: str, kind: type[T]) -> T:
        """The reply to a GET; raises as `post` does."""
        return await self._request("GET", url, None, kind)

    async def close(self) -> None:
        """Closes the connections. May be called twice."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _request(self, method: str, url: str, data: bytes | None, kind: type[T]) -> T:
        try:
            async with self._open().request(method, url, data=data) as response:
                body = await response.read()
        except aiohttp.ConnectionTimeoutError:
            raise EngineError(f"no connection within {self._timeout.sock_connect:g} s", place=url) from None
        except TimeoutError:
            raise EngineError(f"no reply within {self._timeout.total:g} s", place=url) from None
        except (aiohttp.ClientError, OSError) as error:
            raise EngineError(f"cannot be reached: {error or type(error).__name__}", place=url) from error
        if response.status in TRY_AGAIN:
            raise EngineError(f"status {response.status}: {_text(body)}", place=url)
        if response.status >= 400:
            raise Refused(response.status, _text(body), url)
        if kind is type(None):
            return None
        try:
            return msgspec.json.decode(body, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise EngineError(f"a reply that cannot be read: {error}: {_text(body)}", place=url) from None

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=most_connections(), ttl_dns_cache=300, keepalive_timeout=60)
            self._session = aiohttp.ClientSession(connector=connector, timeout=self._timeout, headers=self._headers)
        return self._session


def most_connections() -> int:
    """How many connections may be open at once: half of the files that this process may open (its soft limit is raised
    to the hard one). The rest is for sandboxes, shards and logs. Requests beyond that wait for a free connection.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return max(1, hard // 2)


async def back_off(attempt: int, first_s: float = 0.25, most_s: float = 15.0) -> None:
    """Sleeps `first_s`, twice that, ..., at most `most_s`."""
    await asyncio.sleep(min(most_s, first_s * 2**attempt))


def _text(body: bytes) -> str:
    return " ".join(body[:500].decode("utf-8", "replace").split())
