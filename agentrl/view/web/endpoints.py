"""Endpoints of the page, by name."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any

from agentrl.types.errors import AgentRLError, nearest
from agentrl.view.web import compare, episode, failures, groups, overview, rows, search, tokens
from agentrl.view.web.library import Json, RunLibrary
from agentrl.view.web.query import Query, RequestError

ENDPOINTS: dict[str, Callable[[RunLibrary, Query], Any]] = {
    "runs": overview.runs,
    "head": overview.head,
    "metrics": overview.metrics,
    "updates": overview.updates,
    "episodes": rows.episodes,
    "facets": rows.facets,
    "episode": episode.episode,
    "text": episode.text,
    "blob": episode.blob,
    "tokens": tokens.tokens,
    "prompt": tokens.prompt,
    "group": groups.group,
    "failures": failures.failures,
    "compare": compare.compare,
    "credit": compare.credit,
    "search": search.search,
}


def answer(library: RunLibrary, name: str, ask: Query) -> Any:
    """Answers a request.

    Raises:
        RequestError: it cannot be answered; the error has the status and the reason.
    """
    if name not in ENDPOINTS:
        raise RequestError(404, f"there is no api/{name}", remedy=nearest(name, ENDPOINTS))
    try:
        with library.requests:
            return ENDPOINTS[name](library, ask)
    except RequestError:
        raise
    except AgentRLError as error:
        raise _refusal(library, ask, error, 404 if error.message.startswith("no ") else 500) from error
    except Exception as error:
        raise _refusal(library, ask, error, 500) from error


def _refusal(library: RunLibrary, ask: Query, error: Exception, status: int) -> RequestError:
    """An error as a refusal. A run that is gone is the reason for any."""
    if (key := ask.text("run")) is not None:
        library.path_of(key)
    if isinstance(error, sqlite3.ProgrammingError):
        return RequestError(503, "the run was closed meanwhile", remedy="ask again")
    told = overview.told(error)
    return RequestError(status, told["what"], place=told["place"] or None, remedy=told["remedy"] or None)


def error_of(refused: RequestError) -> Json:
    """A refusal as JSON."""
    return {"error": overview.told(refused)}
