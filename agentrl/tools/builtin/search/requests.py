"""HTTP requests of tools to servers, with retries."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from agentrl.registry.checks import variable
from agentrl.types.errors import InfraError, RecipeError, ToolError
from agentrl.types.http.client import Unanswered, asked

TRIES = 4
"""Attempts at a request that a server does not answer."""

_LARGEST = 8 << 20  # bytes of an answer
_PLAIN = "a"
"""Stands in the place of what the agent wrote, where a server is asked whether that is what it does not take."""


def patience(timeout_s: float) -> float:
    """Returns the longest time of `ask`, with requests of at most `timeout_s`."""
    return (TRIES + 2) * (timeout_s + 4.0)


@dataclass(frozen=True)
class _NoAnswer:
    """Failure of a request.

    Attributes:
        told: in words, for people.
        short: in words, for the agent: nothing that the server says, which may repeat what it was asked.
        refused: whether the server does not take the request; otherwise it may later.
        silent: whether nothing came back.
    """

    told: str
    short: str
    refused: bool = False
    silent: bool = False


async def ask(
    method: str,
    url: str,
    *,
    timeout_s: float,
    said: str = "",
    body: Callable[[str], Any] | None = None,
    query: Callable[[str], dict[str, str]] | None = None,
    headers: dict[str, str] | None = None,
    pause_s: float = 0.5,
) -> Any:
    """Sends a request and returns the server's JSON.

    Retries busy, broken or silent servers, up to `TRIES` attempts with exponential backoff. A request that is refused
    is asked once more with another text in place of the agent's, to see whose fault it is.

    Args:
        said: what the agent wrote of the request.
        body, query: makes that part of the request of a text.

    Raises:
        ToolError: the server does not take what the agent wrote, as too long for example.
        InfraError: no JSON answer after all attempts.
        RecipeError: the server refuses the request whatever it holds: the address or the key is wrong.
    """

    async def asking(text: str) -> Any:
        return await _once(method, url, timeout_s, body and body(text), query and query(text), headers)

    found: Any = None
    for attempt in range(TRIES):
        if attempt:
            await asyncio.sleep(pause_s * 2 ** (attempt - 1))
        found = await asking(said)
        if not isinstance(found, _NoAnswer):
            return found
        if found.refused:
            break
    if said and not found.silent and not isinstance(await asking(_PLAIN), _NoAnswer):
        again = await asking(said)  # the server may have come back in between
        if not isinstance(again, _NoAnswer):
            return again
        if not again.silent:
            raise ToolError(f"the server does not take this ({again.short}): say it shorter, or otherwise")
        found = again
    if found.refused:
        raise RecipeError(f"{url} refuses: {found.told}", place=url, remedy="check url and api_key_env")
    raise InfraError(f"no answer after {TRIES} attempts: {found.told}", place=url)


async def _once(
    method: str, url: str, timeout_s: float, body: Any, query: dict[str, str] | None, headers: dict[str, str] | None
) -> Any:
    """Sends a request once. Returns the server's JSON, or the failure."""
    try:
        status, content = await asked(
            method, url, body=body, query=query, headers=headers, seconds=timeout_s, most=_LARGEST
        )
    except Unanswered as error:
        return _NoAnswer(str(error), "no answer", silent=True)
    except RecipeError as error:  # no URL, or one that is too long
        return _NoAnswer(error.message, "no address can hold it", refused=True)
    if status != 200:
        told = f"status {status}: {content[:200].decode('utf-8', 'replace')}"
        return _NoAnswer(told, f"status {status}", refused=status < 500 and status not in (408, 429))
    try:
        return msgspec.json.decode(content)
    except (ValueError, RecursionError) as error:
        return _NoAnswer(f"{type(error).__name__}: {error}", "no answer that can be read")


def key_of(name: str | None) -> str | None:
    """Returns the API key in an environment variable.

    Raises:
        RecipeError: the variable is not set.
    """
    return None if name is None else variable(name, "api_key_env")
