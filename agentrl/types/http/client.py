"""Clients of servers of others: one of a person's own, and the one that judges and searches of an event loop share."""

from __future__ import annotations

import asyncio
import contextvars
import json
from collections.abc import Mapping, Sequence
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from weakref import WeakKeyDictionary

from agentrl.types.errors import RecipeError
from agentrl.types.http.body import REPLY, Bounds
from agentrl.types.http.hosts import HostList

if TYPE_CHECKING:
    import httpx2

CONNECTIONS = 500
"""Connections of an event loop to judges and searches at a time. Further requests wait."""


class Unanswered(Exception):
    """A server did not answer, or not with what can be read; the text says why."""


class HttpReply(NamedTuple):
    """Reply of a server."""

    status: int
    body: bytes


def http_client(
    allow: Sequence[str] | Literal["public", "any"] = "public",
    *,
    timeout_s: float = 60.0,
    max_bytes: int = REPLY,
    headers: Mapping[str, str] | None = None,
    follow_redirects: bool = False,
) -> httpx2.AsyncClient:
    """A client for a tool, a judge or an environment of one's own, and for SDKs: `AsyncOpenAI(http_client=...)`.

    Addresses are checked when they are connected to, also those of redirects; bodies are unpacked and bounded. Whoever
    made it closes it: `await client.aclose()`. A request to a host that may not be reached raises `ToolError`; all else
    that goes wrong is an error of httpx.

    Args:
        allow: hosts that may be reached, as in the settings of the tool `http`; "public": those at public addresses;
            "any": all, this machine among them, if no model chooses the URL.
        timeout_s: for a request, from its beginning to the last byte of its answer.
        max_bytes: of an answer. One that is sent packed has at most 16 MiB, too.

    Raises:
        ValueError: an entry of `allow` is no host.
    """
    import httpx2

    from agentrl.types.http.transport import Transport

    hosts = None if allow == "any" else HostList(None if allow == "public" else _listed(allow))
    return httpx2.AsyncClient(
        transport=Transport(hosts, Bounds(most=max_bytes), seconds=timeout_s),
        timeout=timeout_s,
        headers={"User-Agent": "agentrl", **(headers or {})},
        follow_redirects=follow_redirects,
        trust_env=False,
    )


async def asked(
    method: str,
    url: str,
    *,
    seconds: float,
    most: int,
    body: Any = None,
    query: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> HttpReply:
    """The answer of a server that a recipe names. A redirect is none: a key would be told to whom it leads to.

    Args:
        seconds: from the beginning of the request to the last byte of its answer.
        most: bytes of the answer.
        body: is sent as JSON.

    Raises:
        Unanswered: there is none, or one that cannot be read.
        RecipeError: the URL is none.
    """
    import httpx2

    try:
        response = await _shared().request(
            method,
            url,
            params={name: _utf8(value).decode() for name, value in (query or {}).items()},
            content=None if body is None else _utf8(json.dumps(body, ensure_ascii=False)),
            headers=({} if body is None else {"Content-Type": "application/json"}) | dict(headers or {}),
            extensions={"bounds": Bounds(most=most), "seconds": seconds},
        )
    except (httpx2.InvalidURL, httpx2.UnsupportedProtocol) as error:
        raise RecipeError(f"{url!r} is no URL: {error}", place=url) from None
    except (httpx2.HTTPError, httpx2.StreamError, ValueError) as error:
        raise Unanswered(f"{type(error).__name__}: {error}") from error
    if response.has_redirect_location:
        leads_to = response.headers["Location"][:500]
        raise Unanswered(f"status {response.status_code}, which leads to {leads_to}: if that is the server, name it")
    return HttpReply(response.status_code, response.content)


# The client of each event loop. It ends with its loop, which cancels its keeper.
_clients: WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[httpx2.AsyncClient, asyncio.Task[None]]] = (
    WeakKeyDictionary()
)


def _shared() -> httpx2.AsyncClient:
    import httpx2

    from agentrl.types.http.transport import Transport

    loop = asyncio.get_running_loop()
    if loop not in _clients:
        client = httpx2.AsyncClient(
            transport=Transport(connections=CONNECTIONS),
            timeout=None,
            headers={"User-Agent": "agentrl"},
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),  # episodes share no state
            trust_env=False,
        )
        keeping = loop.create_task(_keep(loop, client), name="agentrl connections", context=contextvars.Context())
        _clients[loop] = client, keeping
    return _clients[loop][0]


async def _keep(loop: asyncio.AbstractEventLoop, client: httpx2.AsyncClient) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        _clients.pop(loop, None)
        await client.aclose()


def _utf8(text: str) -> bytes:
    """A text that an agent may have written. Half a character is a question mark: servers refuse it."""
    return text.encode("utf-8", "replace")


def _listed(allow: Sequence[str]) -> Sequence[str]:
    if isinstance(allow, str):
        raise ValueError(f"{allow!r} is no list of hosts: write ['{allow}'], or 'public' or 'any'")
    return allow
