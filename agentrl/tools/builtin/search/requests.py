"""HTTP requests of tools to servers, with retries."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from agentrl.registry.checks import variable
from agentrl.types.errors import InfraError, RecipeError
from agentrl.types.http.client import Unanswered, asked

TRIES = 4
_LARGEST = 8 << 20  # bytes of an answer


async def ask(
    method: str,
    url: str,
    *,
    timeout_s: float,
    body: Any = None,
    query: dict[str, str] | None = None,
    headers: dict[str, str] | None = None,
    pause_s: float = 0.5,
) -> Any:
    """Sends a request and returns the server's JSON.

    Retries busy, broken or silent servers, up to `TRIES` attempts with exponential backoff.

    Raises:
        InfraError: no JSON answer after all attempts.
        RecipeError: the server refuses the request: the address or the key is wrong.
    """
    problem = ""
    for attempt in range(TRIES):
        if attempt:
            await asyncio.sleep(pause_s * 2 ** (attempt - 1))
        try:
            status, content = await asked(
                method, url, body=body, query=query, headers=headers, seconds=timeout_s, most=_LARGEST
            )
            if status == 200:
                return msgspec.json.decode(content)
        except Unanswered as error:
            problem = str(error)
        except ValueError as error:  # no JSON
            problem = f"{type(error).__name__}: {error}"
        else:
            problem = f"status {status}: {content[:200].decode('utf-8', 'replace')}"
            if status < 500 and status not in (408, 429):
                raise RecipeError(f"{url} refuses: {problem}", place=url, remedy="check url and api_key_env")
    raise InfraError(f"no answer after {TRIES} attempts: {problem}", place=url)


def key_of(name: str | None) -> str | None:
    """Returns the API key in an environment variable.

    Raises:
        RecipeError: the variable is not set.
    """
    return None if name is None else variable(name, "api_key_env")
