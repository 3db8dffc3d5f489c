"""The HTTP side: every dialect at its path, with the session in the path, a header or the API key.

    POST /v1/chat/completions, /v1/responses, /v1/messages     session by header X-Session-Id, else by API key
    POST /s/NAME/v1/chat/completions, ...                      session by path (base URL http://HOST:PORT/s/NAME/v1)
    POST /s/NAME/end                                           the closing call (`Closing`)
    GET  /v1/models, /s/NAME/v1/models, /health

A header `X-Agentrl-Group` puts the session's episode into a group.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from aiohttp import web

from agentrl.engines.http import Refused
from agentrl.proxy.dialects.dialect import Answer, Dialect
from agentrl.proxy.dialects.table import DIALECTS
from agentrl.proxy.messages import BadRequest, NoSession, SessionEnded
from agentrl.proxy.recorder import Recorder
from agentrl.types import values
from agentrl.types.engine import ContextOverflow
from agentrl.types.errors import InfraError, RenderError
from agentrl.types.values import ValueRefused

STATUS: dict[type[Exception], tuple[int, str]] = {
    NoSession: (404, "no_such_session"),
    SessionEnded: (410, "session_ended"),
    ContextOverflow: (400, "context_length_exceeded"),
    BadRequest: (400, "invalid_request_error"),
    RenderError: (400, "invalid_request_error"),
    Refused: (400, "invalid_request_error"),
    ValueRefused: (400, "invalid_request_error"),
    InfraError: (503, "engine_error"),
}
"""What a program is told of an error: HTTP status and code."""


@dataclass(frozen=True)
class Closing:
    """What a program says when it ends its episode.

    Attributes:
        rewards: components by name. `{"reward": 1.0}` is short for one of that name.
        group: of the episode; None: that of the header, else the session's name.
    """

    rewards: dict[str, float] = field(default_factory=dict)
    answer: str | None = None
    group: str | None = None

    @classmethod
    def of(cls, body: dict[str, Any]) -> Closing:
        """From the body of the closing call.

        Raises:
            ValueRefused: a reward is no finite number.
            BadRequest: it says something else, too.
        """
        if unknown := set(body) - {"rewards", "reward", "answer", "group"}:
            raise BadRequest(
                f"the closing call says {sorted(unknown)[0]!r}", remedy="it takes rewards or reward, answer and group"
            )
        alone = {} if body.get("reward") is None else {"reward": body["reward"]}
        rewards = values.rewards(alone or body.get("rewards"))
        values.number(sum(rewards.values()), "the sum of the rewards")
        said = {key: None if body.get(key) is None else values.text(body[key]) for key in ("answer", "group")}
        return cls(rewards, **said)


class Sessions(ABC):
    """The sessions that a web application feeds.

    Attributes:
        model: its name, for programs.
    """

    model: str

    @abstractmethod
    def recorder(self, name: str) -> Recorder:
        """The recorder of a session.

        Raises:
            NoSession, SessionEnded: it has none.
        """

    @abstractmethod
    async def end(self, name: str, closing: Closing) -> dict[str, Any]:
        """Ends a session; what the program is told.

        Raises:
            NoSession: there is none of that name.
        """

    @abstractmethod
    def stray(self, name: str, asked: str) -> None:
        """A program asked for something that is not spoken here.

        Args:
            name: of the session; "" if the request names none.
            asked: method and path.
        """

    def application(self) -> web.Application:
        """The web application."""
        app = web.Application(client_max_size=64 << 20)
        for prefix in ("", "/s/{session}"):
            for dialect in DIALECTS:
                app.router.add_post(prefix + dialect.path, partial(_ask, self, dialect))
            app.router.add_get(f"{prefix}/v1/models", partial(_models, self))
        app.router.add_post("/s/{session}/end", partial(_end, self))
        app.router.add_get("/health", partial(_health, self))
        app.router.add_route("*", "/{rest:.*}", partial(_stray, self))
        return app

    @abstractmethod
    def __len__(self) -> int:
        """How many are open."""


@asynccontextmanager
async def listening(app: web.Application, host: str, port: int) -> AsyncIterator[str]:
    """Serves an application until the block ends; yields its address. Port 0 selects a free port."""
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        yield f"http://{host}:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def _ask(sessions: Sessions, dialect: Dialect, request: web.Request) -> web.StreamResponse:
    return await _told(dialect.problem, lambda: _answer(sessions, dialect, request))


async def _answer(sessions: Sessions, dialect: Dialect, request: web.Request) -> web.StreamResponse:
    body = await _body(request)
    recorder = sessions.recorder(_session_of(request))
    recorder.group = request.headers.get("X-Agentrl-Group") or recorder.group
    asked = dialect.read(body, recorder.conversations)
    again = request.headers.get("X-Stainless-Retry-Count", "0") != "0"  # OpenAI's and Anthropic's clients say so
    said = await recorder.reply(asked, n=asked.get("n") or 1, retried=again)
    answer = Answer(body, said, sessions.model)
    if (id := dialect.remembered(answer)) is not None:
        recorder.conversations[id] = [*asked["messages"], said[0].message]
    return await _delivered(dialect, answer, request, lambda: recorder.undelivered(said))


async def _delivered(
    dialect: Dialect, answer: Answer, request: web.Request, lost: Callable[[], None]
) -> web.StreamResponse:
    """The finished reply, whole or as a stream of events: programs that read streams get their form."""
    if request.transport is None or request.transport.is_closing():
        lost()
    if not answer.body.get("stream"):
        return web.json_response(dialect.whole(answer))
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    await response.prepare(request)
    for event in dialect.events(answer):
        await response.write(event)
    await response.write_eof()
    return response


async def _end(sessions: Sessions, request: web.Request) -> web.StreamResponse:
    async def close() -> web.StreamResponse:
        body = await _body(request) if request.can_read_body else {}
        return web.json_response(await sessions.end(request.match_info["session"], Closing.of(body)))

    return await _told(DIALECTS[0].problem, close)


async def _models(sessions: Sessions, request: web.Request) -> web.Response:
    model = {"id": sessions.model, "object": "model", "owned_by": "agentrl", "created": 0}
    own = {"type": "model", "display_name": sessions.model, "created_at": "2020-01-01T00:00:00Z"}  # Anthropic's form
    return web.json_response({"object": "list", "data": [model | own], "has_more": False})


async def _health(sessions: Sessions, request: web.Request) -> web.Response:
    return web.json_response({"sessions": len(sessions)})


async def _stray(sessions: Sessions, request: web.Request) -> web.Response:
    """What is not spoken here: the program is told what is."""
    parts = request.path.split("/")
    name = parts[2] if len(parts) > 3 and parts[1] == "s" else request.headers.get("X-Session-Id") or _key(request)
    asked = f"{request.method} {request.path}"
    sessions.stray(name, asked)
    spoken = ", ".join(dialect.path for dialect in DIALECTS)
    return web.json_response(DIALECTS[0].problem("not_found", f"{asked}: what is spoken here is {spoken}"), status=404)


async def _told(
    problem: Callable[[str, str], dict[str, Any]], work: Callable[[], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """The response; errors of the table in the form that the program reads."""
    try:
        return await work()
    except tuple(STATUS) as error:
        status, code = next(found for kind, found in STATUS.items() if isinstance(error, kind))
        return web.json_response(problem(code, str(error)), status=status)


def _session_of(request: web.Request) -> str:
    """Path, header or API key, in this order.

    Raises:
        BadRequest: none of them names a session.
    """
    name = request.match_info.get("session") or request.headers.get("X-Session-Id") or _key(request)
    if not name:
        raise BadRequest(
            "the request belongs to no session",
            remedy="base URL http://HOST:PORT/s/NAME/v1, or a header X-Session-Id, or an API key per episode",
        )
    return name


def _key(request: web.Request) -> str:
    """The API key, as OpenAI's or as Anthropic's clients send it; "" without one."""
    bearer = request.headers.get("Authorization", "").removeprefix("Bearer").strip()
    return bearer or request.headers.get("X-Api-Key", "")


async def _body(request: web.Request) -> dict[str, Any]:
    """The request's JSON object.

    Raises:
        BadRequest: it has none.
    """
    try:
        body = await request.json()
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the body is no JSON: {error}") from None
    if not isinstance(body, dict):
        raise BadRequest("the body must be a JSON object")
    return body
