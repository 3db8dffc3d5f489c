"""HTTP requests with checked redirects and limits on everything that a server sends."""

from __future__ import annotations

import errno
import re
import socket
import ssl
from email.message import Message as Header
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from pydantic import BaseModel, ConfigDict, Field, field_validator
from yarl import URL

from agentrl.tools.builtin.web.hosts import HostList
from agentrl.tools.builtin.web.readable import Answer
from agentrl.tools.calling import in_thread
from agentrl.types.clocks.deadline import Deadline
from agentrl.types.errors import InfraError, ToolError
from agentrl.types.parts.body import PACKINGS, BodyRefused, beginning
from agentrl.types.sandbox import HOST

REDIRECTS = (301, 302, 303, 307, 308)
LOCAL = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EADDRNOTAVAIL)
"""Errors of exhausted local resources, caused by neither the model nor a server."""

_HEADERS = {
    "User-Agent": "agentrl",
    "Accept": "text/html,application/xhtml+xml,application/json,text/plain;q=0.9,*/*;q=0.5",
    "Accept-Encoding": PACKINGS,
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
        if (wrong := next((each for each in value or () if not re.match(HOST, each)), None)) is not None:
            raise ValueError(f"{wrong!r} is no host: write example.org, *.example.org or 192.0.2.1, or that and :port")
        return value


class Fetcher:
    """Fetches pages for one episode, with its own cookies."""

    def __init__(self, settings: HttpSettings) -> None:
        self.settings = settings
        self._hosts = HostList(settings.allow)
        self._client: aiohttp.ClientSession | None = None

    async def get(self, url: str) -> Answer:
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
        except (aiohttp.ClientError, OSError, ValueError) as error:
            if (local := _errno(error)) in LOCAL:
                raise InfraError(f"http: {errno.errorcode[local]}: {error}", remedy="lower concurrency") from None
            raise ToolError(f"{target.host}: {_said(error)}") from None

    async def close(self) -> None:
        """Closes the connections."""
        if self._client is not None:
            await self._client.close()

    async def _followed(self, url: URL) -> Answer:
        for _ in range(self.settings.max_redirects + 1):
            self._hosts.check(url.raw_host or "", url.port or 0)
            async with self._session().get(url, allow_redirects=False) as response:
                location = response.headers.get("Location")
                if response.status in REDIRECTS and location:
                    url = _checked(str(url.join(URL(location))))
                    continue
                if response.status >= 400:
                    raise ToolError(f"HTTP {response.status} {response.reason or ''}: {url}")
                return await self._read(response)
        raise ToolError(f"more than {self.settings.max_redirects} redirects, the last to {url}")

    async def _read(self, response: aiohttp.ClientResponse) -> Answer:
        kind = Header()
        kind["content-type"] = response.headers.get("Content-Type", "")
        encoding = response.headers.get("Content-Encoding", "")
        body, cut = await beginning(response.content.iter_chunked(1 << 16), encoding, self.settings.max_bytes)
        return Answer(
            url=str(response.url),
            type=kind.get_content_type() if response.headers.get("Content-Type") else "",
            charset=str(kind.get_param("charset") or ""),
            body=bytes(body),
            size=None if encoding else response.content_length,
            cut=cut,
        )

    def _session(self) -> aiohttp.ClientSession:
        if self._client is None:
            connector = aiohttp.TCPConnector(resolver=_Resolver(self._hosts), use_dns_cache=False)
            # `beginning` decompresses bodies, with a limit on the output.
            self._client = aiohttp.ClientSession(
                connector=connector, headers=_HEADERS, auto_decompress=False, timeout=aiohttp.ClientTimeout(total=None)
            )
        return self._client


class _Resolver(AbstractResolver):
    """Resolver that drops addresses that are not allowed, so that the checked address is the one connected to."""

    def __init__(self, hosts: HostList) -> None:
        self._hosts = hosts

    async def resolve(self, host: str, port: int = 0, family: Any = socket.AF_UNSPEC) -> list[ResolveResult]:
        # A separate thread, so that a slow lookup blocks no other request.
        found = await in_thread(lambda: socket.getaddrinfo(host, port, family, socket.SOCK_STREAM))
        families = {each[4][0]: each[0] for each in found}
        return [
            {"hostname": host, "host": address, "port": port, "family": families[address], "proto": 0,
             "flags": socket.AI_NUMERICHOST}
            for address in self._hosts.check_addresses(host, port, list(families))
        ]  # fmt: skip

    async def close(self) -> None:
        """Does nothing."""


def _checked(url: str) -> URL:
    """Parses and checks a URL.

    Raises:
        ToolError: the URL is invalid.
    """
    try:
        parsed = URL(url.strip())
    except ValueError as error:
        raise ToolError(f"{url[:200]!r} is no URL: {error}") from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ToolError(f"{url[:200]!r} is no URL of the web; it begins with http:// or https:// and a host")
    return parsed


def _errno(error: BaseException) -> int:
    return getattr(error, "errno", None) or getattr(error.__cause__, "errno", None) or 0


def _said(error: Exception) -> str:
    """Describes a connection error for the model, by the first matching type."""
    for kind, words in _WORDS:
        if isinstance(error, kind):
            return words.format(error=" ".join(str(error).split())[:200])
    return f"{type(error).__name__}: {error}"


_WORDS: list[tuple[Any, str]] = [
    (aiohttp.ClientConnectorCertificateError, "its certificate is not valid ({error})"),
    ((aiohttp.ClientSSLError, ssl.SSLError), "TLS failed ({error})"),
    ((aiohttp.ClientConnectorDNSError, socket.gaierror), "there is no host of this name"),
    (aiohttp.ClientConnectorError, "no connection ({error})"),
    (aiohttp.ServerDisconnectedError, "the server closed the connection without an answer"),
    (aiohttp.ClientPayloadError, "the answer broke off ({error})"),
    (aiohttp.ClientResponseError, "the answer is not HTTP, or its headers are too large ({error})"),
    (BodyRefused, "the answer cannot be read: {error}"),
    (OSError, "the connection broke ({error})"),
]
