"""HTTP requests with checked redirects and limits on everything that a server sends."""

from __future__ import annotations

import errno
import math
import socket
import ssl
from collections.abc import Iterator
from email.message import Message as Header
from http.cookiejar import Cookie, CookieJar, DefaultCookiePolicy
from typing import Any

import httpx2
from pydantic import BaseModel, ConfigDict, Field, field_validator

from agentrl.tools.builtin.web.readable import HttpAnswer
from agentrl.types.clocks.deadline import Deadline
from agentrl.types.errors import InfraError, ToolError
from agentrl.types.http.body import BodyRefused, Bounds, BrokenOff, TooLarge
from agentrl.types.http.hosts import HostList, check_entries
from agentrl.types.http.transport import Transport, Unreadable, server_of

REDIRECTS = (301, 302, 303, 307, 308)
LOCAL = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EADDRNOTAVAIL)
"""Errors of exhausted local resources, caused by neither the model nor a server."""

URL = 8000
"""Characters of a URL: servers take no more, and the model reads it."""

COOKIES = 100
"""Cookies of an episode that are kept, each of up to 4096 characters."""

_HEADERS = {
    "User-Agent": "agentrl",
    "Accept": "text/html,application/xhtml+xml,application/json,text/plain;q=0.9,*/*;q=0.5",
}


class HttpSettings(BaseModel):
    """Settings of the `http` tool."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    allow: tuple[str, ...] | None = Field(
        None, description="host, *.domain, or IPv4 address; ports 80 and 443 unless :port follows. None: public hosts."
    )
    timeout_s: float = Field(20.0, gt=0, description="Seconds for a page, redirects included.")
    max_bytes: int = Field(5_000_000, gt=0, description="Bytes of a page that are read, packed or unpacked.")
    max_redirects: int = Field(5, ge=0, description="Redirects followed for a page.")
    chars: int = Field(8000, gt=0, description="Characters shown at a time.")
    links: bool = Field(True, description="Whether links are shown, as [text](url).")

    @field_validator("allow")
    @classmethod
    def _hosts(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        check_entries(value or ())
        return value


class Fetcher:
    """Fetches pages for one episode, with its own cookies."""

    def __init__(self, settings: HttpSettings) -> None:
        self.settings = settings
        self._hosts = HostList(settings.allow)
        self._client: httpx2.AsyncClient | None = None

    async def get(self, url: str) -> HttpAnswer:
        """Fetches a URL.

        Raises:
            ToolError: the page cannot be fetched; the message is for the model.
            InfraError: this machine has run out of sockets or memory.
        """
        target = _checked(url)
        try:
            async with Deadline(self.settings.timeout_s):
                return await self._followed(target)
        except TimeoutError:
            raise ToolError(f"no complete answer from {target.host} within {self.settings.timeout_s:g} s") from None
        except (httpx2.HTTPError, httpx2.StreamError, ValueError) as error:
            causes = list(_causes(error))
            local = next((each.errno for each in causes if isinstance(each, OSError) and each.errno in LOCAL), None)
            if local is not None:
                raise InfraError(f"http: {errno.errorcode[local]}: {error}", remedy="lower concurrency") from None
            raise ToolError(f"{target.host}: {_said(causes)}") from None

    async def close(self) -> None:
        """Closes the connections."""
        if self._client is not None:
            await self._client.aclose()

    async def _followed(self, url: httpx2.URL) -> HttpAnswer:
        for _ in range(self.settings.max_redirects + 1):
            async with self._opened().stream("GET", url) as response:
                location = response.headers.get("Location")
                if response.status_code in REDIRECTS and location:
                    url = _checked(location, url)
                    continue
                if response.status_code >= 400:
                    raise ToolError(f"HTTP {response.status_code} {response.reason_phrase[:200]}: {url}")
                return await self._read(response)
        raise ToolError(f"more than {self.settings.max_redirects} redirects, the last to {url}")

    async def _read(self, response: httpx2.Response) -> HttpAnswer:
        kind = Header()
        kind["content-type"] = response.headers.get("Content-Type", "")
        size = response.headers.get("Content-Length", "")
        body, cut = bytearray(), False
        try:
            async for part in response.aiter_raw():
                body += part
        except Unreadable as error:
            if not isinstance(error.__cause__, (TooLarge, BrokenOff)):
                raise
            cut = True
        return HttpAnswer(
            url=str(response.url),
            type=kind.get_content_type() if response.headers.get("Content-Type") else "",
            charset=str(kind.get_param("charset") or ""),
            body=bytes(body),
            size=int(size) if size.isdecimal() else None,
            cut=cut,
        )

    def _opened(self) -> httpx2.AsyncClient:
        if self._client is None:
            most = self.settings.max_bytes
            self._client = httpx2.AsyncClient(
                transport=Transport(self._hosts, Bounds(most=most, packed=most, values=math.inf)),
                headers=_HEADERS,
                cookies=CookieJar(_FewCookies()),
                timeout=None,
                trust_env=False,
            )
        return self._client


class _FewCookies(DefaultCookiePolicy):
    """Keeps the first cookies of an episode: servers may send any number."""

    def __init__(self) -> None:
        super().__init__()
        self._kept: set[tuple[str, str, str]] = set()

    def set_ok(self, cookie: Cookie, request: Any) -> bool:
        key = cookie.domain, cookie.path, cookie.name
        full = key not in self._kept and len(self._kept) >= COOKIES
        if full or len(cookie.name) + len(cookie.value or "") > 4096 or not super().set_ok(cookie, request):
            return False
        self._kept.add(key)
        return True


def _checked(url: str, base: httpx2.URL | None = None) -> httpx2.URL:
    """A URL that can be asked for, without what only a browser reads of it.

    Args:
        base: what it is relative to.

    Raises:
        ToolError: the URL is invalid.
    """
    try:
        parsed = httpx2.URL(url.strip()) if base is None else base.join(url.strip())
        server_of(parsed)
        if len(str(parsed)) > URL:
            raise ValueError(f"it has more than {URL} characters")
    except httpx2.UnsupportedProtocol as error:
        raise ToolError(str(error)) from None
    except (httpx2.InvalidURL, ValueError) as error:
        raise ToolError(f"{url[:200]!r} is no URL: {error}") from None
    return parsed.copy_with(fragment=None)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error and what led to it."""
    while error is not None:
        yield error
        error = error.__cause__


def _said(causes: list[BaseException]) -> str:
    """Describes a failed connection to a server for the model."""
    for kind, part, words in _WORDS:
        for each in causes:
            if isinstance(each, kind) and part in str(each):
                return words.format(error=" ".join(str(each).split())[:200])
    return f"{type(causes[0]).__name__}: {str(causes[0])[:200]}"


# A kind of error, a part of its text, and what is said.
_WORDS: list[tuple[Any, str, str]] = [
    (ssl.SSLCertVerificationError, "", "its certificate is not valid ({error})"),
    (ssl.SSLError, "", "TLS failed ({error})"),
    ((socket.gaierror, UnicodeError), "", "there is no host of this name"),
    ((httpx2.ConnectError, httpx2.ConnectTimeout), "", "no connection ({error})"),
    (httpx2.RemoteProtocolError, "without sending a response", "the server closed the connection without an answer"),
    (httpx2.RemoteProtocolError, "without sending complete message", "the answer broke off ({error})"),
    (httpx2.ProtocolError, "", "the answer is not HTTP, or its headers are too large ({error})"),
    (BodyRefused, "", "the answer cannot be read: {error}"),
    (httpx2.NetworkError, "", "the connection broke ({error})"),
]
