"""HTTP client of the engines: one aiohttp session, JSON by msgspec, and errors, retryable or permanent.

msgspec decodes directly into the engines' reply types, so a reply is parsed and checked in one pass.
"""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Coroutine
from typing import Any, TypeVar

import aiohttp
import msgspec

from agentrl.types.errors import EngineError, InfraError
from agentrl.types.http.body import REPLY, BodyRefused, Bounds, whole

T = TypeVar("T")

TRY_AGAIN = {408, 409, 425, 429, 500, 502, 503, 504, 529}
"""Statuses of a busy, starting or broken server: the request is retried. Other error statuses are permanent."""


REMEDIES = {
    401: "the server requires a key: engine.api_key_env names the environment variable that holds it",
    403: "the key is not allowed to do that, or engine.urls names the wrong server",
    404: "the server has no such path or model: check engine.urls, engine.model, and whether the server was restarted "
    "with another model",
    413: "the request is too long for the server, or for a proxy before it: raise its limit, or shorten observations",
}
"""Remedies by status. For other statuses the error has only the server's text."""


class Refused(InfraError):
    """The server rejected the request. Neither a retry nor another server would help."""

    cause = "refusal"
    retried = False

    def __init__(self, status: int, text: str, url: str) -> None:
        self.status, self.text = status, text
        super().__init__(
            f"the server refused with status {status}: {text[:500]}", place=url, remedy=REMEDIES.get(status)
        )


class HttpClient:
    """Sends requests and decodes typed replies.

    The first request opens the aiohttp session, because a session belongs to the running event loop.

    Args:
        timeout_s: timeout of one request, from first byte sent to last byte received.
        headers: sent with every request.
    """

    def __init__(self, *, timeout_s: float, headers: dict[str, str] | None = None) -> None:
        self._timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=min(30.0, timeout_s))
        # No compression: servers are near, and compression costs them time.
        self._headers = {"Content-Type": "application/json", "Accept-Encoding": "identity", **(headers or {})}
        self._bounds = Bounds(most=REPLY)
        self._session: aiohttp.ClientSession | None = None

    def post(self, url: str, body: Any, kind: type[T]) -> Coroutine[Any, Any, T]:
        """Sends `body` as JSON. Returns the reply, decoded as `kind`.

        Raises:
            EngineError: no reply, or a status of `TRY_AGAIN`; the same request may succeed later or elsewhere.
            Refused: the server rejected the request.
        """
        return self._request("POST", url, msgspec.json.encode(body), kind)

    def get(self, url: str, kind: type[T]) -> Coroutine[Any, Any, T]:
        """Sends a GET. Returns the reply, decoded as `kind`. Raises the errors of `post`."""
        return self._request("GET", url, None, kind)

    async def close(self) -> None:
        """Closes the connections. May be called twice."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _request(self, method: str, url: str, data: bytes | None, kind: type[T]) -> T:
        try:
            async with self._open().request(method, url, data=data) as response:
                body = await self._body(response)
        except aiohttp.ConnectionTimeoutError:
            raise EngineError(f"no connection within {self._timeout.sock_connect:g} s", place=url) from None
        except TimeoutError:
            raise EngineError(f"no reply within {self._timeout.total:g} s", place=url) from None
        except BodyRefused as error:
            raise EngineError(f"a reply that cannot be read: {error}", place=url) from None
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

    async def _body(self, response: aiohttp.ClientResponse) -> bytes | bytearray:
        encoding, size = response.headers.get("Content-Encoding", ""), response.content_length
        if not encoding and size is not None and size <= self._bounds.most:
            return await response.read()  # no more arrives than its head says
        return await whole(response.content.iter_any(), encoding, self._bounds)

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=most_connections(), ttl_dns_cache=300, keepalive_timeout=60)
            self._session = aiohttp.ClientSession(
                connector=connector,
                timeout=self._timeout,
                headers=self._headers,
                auto_decompress=False,  # `whole` bounds the decompressed size
                cookie_jar=aiohttp.DummyCookieJar(),  # engines set none, and looking for them takes time
            )
        return self._session


def most_connections() -> int:
    """Maximum number of open connections: half of the files that this process may open.

    The other half is for sandboxes, shards and logs. Raises the soft limit of open files to the hard limit. Requests
    beyond the maximum wait for a free connection.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return max(1, hard // 2)


async def back_off(attempt: int, first_s: float = 0.25, most_s: float = 15.0) -> None:
    """Exponential back-off: sleeps min(most_s, first_s * 2**attempt) seconds."""
    await asyncio.sleep(min(most_s, first_s * 2**attempt))


def _text(body: bytes | bytearray) -> str:
    return " ".join(body[:500].decode("utf-8", "replace").split())
