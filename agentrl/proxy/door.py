"""Access checks and size limits of the proxy, before a request is processed.

Browsers are refused: a foreign page can reach servers on this machine, under a host name that resolves to it (DNS
rebinding), or with a request that needs no CORS preflight. Programs use the address that they were given.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web

from agentrl.proxy.messages import BadRequest
from agentrl.types.clocks.deadline import Deadline
from agentrl.types.errors import AgentRLError
from agentrl.types.parts.foreign_json import read_json

MOST_BYTES = 32 << 20
"""The longest body of a request."""

MOST_ITEMS = 10_000
"""Maximum number of messages, tools, stop strings and other list items of a request."""

MOST_REPLIES = 64
"""The most replies to one prompt."""

_CHARSETS = ("utf-8", "utf8", "ascii", "us-ascii")
BODY_S = 30.0
"""Within this time a body must be there."""

PRIVATE = (".localhost", ".internal", ".local")
"""Host names that cannot be registered in the public DNS."""


class Foreign(AgentRLError):
    """A request comes from a page in a browser, or names a host that this server is not."""


class TooLate(AgentRLError):
    """The body of a request did not arrive in time."""


def check_source(request: web.Request, names: Collection[str]) -> None:
    """Refuses requests of browsers.

    Args:
        names: names of this server, besides addresses and names that cannot be public.

    Raises:
        Foreign: the request names another host, or comes from a page.
    """
    if not is_ours(request.host, names):
        raise Foreign(
            f"the request is for the host {request.host!r}, which is not known to be this server",
            remedy="use its address, or tell the proxy its name: --name HOST",
        )
    origin = request.headers.get("Origin")
    same = origin is None or _host_of(origin) == request.host
    if not same or request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
        raise Foreign(f"the request comes from a page in a browser ({origin})", remedy="ask from a program")


def is_ours(host: str, names: Collection[str]) -> bool:
    """Returns True if a `Host` header can only mean this server: an address, or a name that others cannot register."""
    try:
        name = (urlsplit(f"//{host}").hostname or "").removesuffix(".")
    except ValueError:
        return False
    if not name:
        return False
    try:
        ip_address(name)
    except ValueError:
        return "." not in name or name.endswith(PRIVATE) or name in names
    return True


def _host_of(origin: str) -> str:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""


async def body_of(request: web.Request) -> dict[str, Any]:
    """The JSON object in the body of a request.

    Raises:
        TooLate: the body did not arrive.
        BadRequest: it is not a JSON object, or lists too much.
    """
    try:
        async with Deadline(BODY_S):
            data = await request.read()
    except TimeoutError:
        raise TooLate(f"the body of the request did not arrive within {BODY_S:g} s") from None
    if (request.charset or "utf-8").lower().replace("_", "-") not in _CHARSETS:
        raise BadRequest(f"the body is not JSON: its charset is {request.charset!r}, not utf-8 (RFC 8259)")
    try:
        body = read_json(data)
    except ValueError as error:
        raise BadRequest(f"the body is not JSON that is read here: {error}") from None
    if not isinstance(body, dict):
        raise BadRequest("the body must be a JSON object")
    for key, value in body.items():
        if isinstance(value, list) and len(value) > MOST_ITEMS:
            raise BadRequest(f"{key[:80]!r} lists {len(value)} items, and at most {MOST_ITEMS} are taken")
    if isinstance(n := body.get("n"), int) and n > MOST_REPLIES:
        raise BadRequest(f"'n' is {n}, and at most {MOST_REPLIES} replies are given to one prompt")
    return body


def texts_of(given: Any) -> Iterator[str]:
    """Yields all that a template may write of JSON values: texts, names, and numbers by their length."""
    waiting = [given]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            yield from value
            waiting += reversed(value.values())
        elif isinstance(value, list):
            waiting += reversed(value)
        elif isinstance(value, int):
            yield "0" * (value.bit_length() // 4 + 1)
        elif isinstance(value, float):
            yield "0.0"


def texts_of_messages(messages: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yields the texts of messages, as `texts_of`, without the names of their fields and the files of images."""
    for message in messages:
        for key, value in message.items():
            parts = value if key == "content" and isinstance(value, list) else [value]
            for part in parts:
                yield from texts_of(_said(part) if parts is value else part)


def _said(part: Any) -> Any:
    """Returns what a template may write of a part of a content."""
    if not isinstance(part, dict):
        return part
    held = {key: value for key, value in part.items() if key != "type"}
    if part.get("type") == "image_url":
        url = held.pop("image_url", None)
        held |= {key: value for key, value in url.items() if key != "url"} if isinstance(url, dict) else {}
    return held["text"] if held.keys() == {"text"} else held
