"""The proxy's HTTP routes: each dialect at its path, with the session in the path, a header or the API key.

    POST /v1/chat/completions, /v1/responses, /v1/messages, /v1beta/models/MODEL:generateContent, ...
                                                  session by header X-Session-Id, else by API key
    POST /s/NAME/v1/chat/completions, ...         session by path (base URL http://HOST:PORT/s/NAME/v1)
    POST /s/NAME/end                              the closing call (`Closing`)
    GET  /v1/models, /s/NAME/v1/models, /health

The header `X-Agentrl-Group` sets the group of the session's episode.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from agentrl.proxy.dialects.anthropic import Messages
from agentrl.proxy.dialects.chat import ChatCompletions
from agentrl.proxy.dialects.dialect import Dialect, DialectAnswer
from agentrl.proxy.dialects.gemini import GenerateContent, StreamGenerateContent
from agentrl.proxy.dialects.responses import Responses
from agentrl.proxy.door import MOST_BYTES, Foreign, TooLate, body_of, check_source
from agentrl.proxy.messages import BadRequest, NoSession, RewardsRefused, SessionEnded
from agentrl.proxy.recorder import Recorder, reading
from agentrl.types import values
from agentrl.types.engine import ContextOverflow
from agentrl.types.errors import AgentRLError, InfraError, RenderError
from agentrl.types.values import ValueRefused

DIALECTS: tuple[Dialect, ...] = (
    ChatCompletions(), Responses(), Messages(), GenerateContent(), StreamGenerateContent(),
)  # fmt: skip


KEPT_S = 120.0
"""A connection is closed after this time without a request."""

MOST_ANSWER = 1 << 18
"""The most characters of an answer: rewards compare it in this process."""


class TooManySessions(AgentRLError):
    """The maximum number of sessions is open."""


STATUS: dict[type[Exception], tuple[int, str]] = {
    Foreign: (403, "foreign"),
    TooLate: (408, "request_timeout"),
    TooManySessions: (503, "too_many_sessions"),
    NoSession: (404, "no_such_session"),
    SessionEnded: (410, "session_ended"),
    RewardsRefused: (403, "rewards_refused"),
    ContextOverflow: (400, "context_length_exceeded"),
    BadRequest: (400, "invalid_request_error"),
    RenderError: (400, "invalid_request_error"),
    ValueRefused: (400, "invalid_request_error"),
    InfraError: (503, "engine_error"),
}
"""HTTP status and error code by exception."""


@dataclass(frozen=True)
class Closing:
    """The closing call, with which a program ends its episode.

    Attributes:
        rewards: reward components by name. `{"reward": 1.0}` is short for one component of that name.
        answer: the final answer.
        group: group of the episode; default: that of the header, else the session's name.
        data: data of the task, for rewards of the recipe.
    """

    rewards: dict[str, float] = field(default_factory=dict)
    answer: str | None = None
    group: str | None = None
    data: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, body: dict[str, Any]) -> Closing:
        """Reads the body of the closing call.

        Raises:
            ValueRefused: a reward is not a finite number.
            BadRequest: the body has an unknown key, its data is not an object, or the answer is too long.
        """
        if unknown := set(body) - {"rewards", "reward", "answer", "group", "data"}:
            raise BadRequest(
                f"the closing call has an unknown key {sorted(unknown)[0]!r}",
                remedy="it takes rewards or reward, answer, group and data",
            )
        data = body.get("data") or {}
        if not isinstance(data, dict):
            raise BadRequest(f"the data of the closing call is {data!r}, not an object")
        alone = {} if body.get("reward") is None else {"reward": body["reward"]}
        rewards = values.rewards(alone or body.get("rewards"))
        values.number(sum(rewards.values()), "the sum of the rewards")
        said = {key: None if body.get(key) is None else values.text(body[key]) for key in ("answer", "group")}
        if len(said["answer"] or "") > MOST_ANSWER:
            raise BadRequest(f"the answer is longer than the {MOST_ANSWER} characters that are taken at most")
        return cls(rewards, **said, data=data)


class Sessions(ABC):
    """The sessions of a web application.

    Attributes:
        model: name of the model in responses.
        names: of the server, besides its address (`door.py`).
    """

    model: str
    names: Collection[str] = ()

    @abstractmethod
    def recorder(self, name: str) -> Recorder:
        """Returns the recorder of a session.

        Raises:
            NoSession: the session does not exist.
            SessionEnded: the session has ended.
        """

    @contextmanager
    def request(self, name: str) -> Iterator[Recorder]:
        """The recorder of a session while a request to it is answered. Raises the errors of `recorder`."""
        recorder = self.recorder(name)
        recorder.requests += 1
        try:
            yield recorder
        finally:
            recorder.requests -= 1
            self.answered(name, recorder)

    @abstractmethod
    def answered(self, name: str, recorder: Recorder) -> None:
        """Called when a request to a session is over."""

    @abstractmethod
    async def end(self, name: str, closing: Closing) -> dict[str, Any]:
        """Ends a session. Returns the response to the program.

        Raises:
            NoSession: the session does not exist.
            RewardsRefused: the closing call has rewards, which this server does not accept.
        """

    @abstractmethod
    def stray(self, name: str, asked: str) -> None:
        """Called for requests to unsupported paths.

        Args:
            name: name of the session; "" if the request names none.
            asked: method and path of the request.
        """

    def application(self) -> web.Application:
        """The web application."""
        app = web.Application(client_max_size=MOST_BYTES, middlewares=[self._checked])
        for prefix in ("", "/s/{session}"):
            for dialect in DIALECTS:
                for path in dialect.paths:
                    app.router.add_post(prefix + path, partial(_ask, self, dialect))
                for path in dialect.counting:
                    app.router.add_post(prefix + path, partial(_count, self, dialect))
            app.router.add_get(f"{prefix}/v1/models", partial(_models, self))
        app.router.add_post("/s/{session}/end", partial(_end, self))
        app.router.add_get("/health", partial(_health, self))
        app.router.add_route("*", "/{rest:.*}", partial(_stray, self))
        return app

    @property
    def _checked(self) -> Middleware:
        """Middleware that refuses all requests of browsers."""

        @web.middleware
        async def checked(request: web.Request, handler: Handler) -> web.StreamResponse:
            async def answer() -> web.StreamResponse:
                check_source(request, self.names)
                return await handler(request)

            return await _told(DIALECTS[0].problem, answer)

        return checked

    @abstractmethod
    def __len__(self) -> int:
        """Number of open sessions."""


@asynccontextmanager
async def listening(app: web.Application, host: str, port: int) -> AsyncIterator[str]:
    """Serves an application until the block ends; yields its address. Port 0 selects a free port."""
    runner = web.AppRunner(app, keepalive_timeout=KEPT_S)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        yield f"http://{host}:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def _ask(sessions: Sessions, dialect: Dialect, request: web.Request) -> web.StreamResponse:
    return await _told(dialect.problem, lambda: _answer(sessions, dialect, request))


async def _count(sessions: Sessions, dialect: Dialect, request: web.Request) -> web.StreamResponse:
    async def count() -> web.StreamResponse:
        body = await body_of(request)
        with sessions.request(_session_of(request)) as recorder:
            with reading():
                asked = dialect.read(body, recorder.conversations)
            return web.json_response(dialect.counted(await recorder.count(asked)))

    return await _told(dialect.problem, count)


async def _answer(sessions: Sessions, dialect: Dialect, request: web.Request) -> web.StreamResponse:
    body = await body_of(request)
    with sessions.request(_session_of(request)) as recorder:
        recorder.group = request.headers.get("X-Agentrl-Group") or recorder.group
        with reading():
            asked = dialect.read(body, recorder.conversations)
        recorder.apis.add(dialect.name)
        again = request.headers.get("X-Stainless-Retry-Count", "0") != "0"  # set by OpenAI's and Anthropic's clients
        said = await recorder.reply(asked, n=asked.get("n") or 1, retried=again)
        answer = DialectAnswer(body, said, sessions.model)
        if (id := dialect.remembered(answer)) is not None:
            recorder.conversations[id] = [*asked["messages"], said[0].message]
        return await _delivered(dialect, answer, request, lambda: recorder.undelivered(said))


async def _delivered(
    dialect: Dialect, answer: DialectAnswer, request: web.Request, lost: Callable[[], None]
) -> web.StreamResponse:
    """Sends the finished reply, as JSON or, if the request asks for it, as server-sent events."""
    if request.transport is None or request.transport.is_closing():
        lost()
    if not dialect.streams(answer.body, request.query):
        return web.json_response(dialect.whole(answer))
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    await response.prepare(request)
    for event in dialect.events(answer):
        await response.write(event)
    await response.write_eof()
    return response


async def _end(sessions: Sessions, request: web.Request) -> web.StreamResponse:
    async def close() -> web.StreamResponse:
        body = await body_of(request) if request.can_read_body else {}
        return web.json_response(await sessions.end(request.match_info["session"], Closing.of(body)))

    return await _told(DIALECTS[0].problem, close)


async def _models(sessions: Sessions, request: web.Request) -> web.Response:
    model = {"id": sessions.model, "object": "model", "owned_by": "agentrl", "created": 0}
    own = {"type": "model", "display_name": sessions.model, "created_at": "2020-01-01T00:00:00Z"}  # Anthropic's form
    return web.json_response({"object": "list", "data": [model | own], "has_more": False})


async def _health(sessions: Sessions, request: web.Request) -> web.Response:
    return web.json_response({"sessions": len(sessions)})


async def _stray(sessions: Sessions, request: web.Request) -> web.Response:
    """Answers requests to unsupported paths with status 404 and the supported paths."""
    parts = request.path.split("/")
    name = parts[2] if len(parts) > 3 and parts[1] == "s" else request.headers.get("X-Session-Id") or _key(request)
    asked = f"{request.method} {request.rel_url.raw_path}"[:200]  # as it was sent: no control character ends a line
    sessions.stray(name, asked)
    spoken = ", ".join(dialect.paths[0] for dialect in DIALECTS)
    message = f"{asked} is not supported; supported are {spoken}"
    return web.json_response(DIALECTS[0].problem("not_found", message, 404), status=404)


async def _told(
    problem: Callable[[str, str, int], dict[str, Any]], work: Callable[[], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """The response of `work`. Errors of `STATUS` become responses in the dialect's format."""
    try:
        return await work()
    except tuple(STATUS) as error:
        status, code = _status(error)
        response = web.json_response(problem(code, str(error), status), status=status)
        if isinstance(error, TooLate):  # the body may never end
            response.force_close()
        return response


def _status(error: Exception) -> tuple[int, str]:
    """Returns status and code of an error. Programs retry after 503, so errors without `retried` get another one."""
    if isinstance(error, InfraError) and not error.retried:
        return STATUS[BadRequest]
    return next(found for kind, found in STATUS.items() if isinstance(error, kind))


def _session_of(request: web.Request) -> str:
    """The session's name from the path, the header or the API key, in this order.

    Raises:
        BadRequest: none of them names a session.
    """
    name = request.match_info.get("session") or request.headers.get("X-Session-Id") or _key(request)
    if not name:
        raise BadRequest(
            "the request belongs to no session",
            remedy="use the base URL http://HOST:PORT/s/NAME/v1, a header X-Session-Id, or an API key per episode",
        )
    return name


def _key(request: web.Request) -> str:
    """Returns the API key from the header of OpenAI's, Anthropic's or Google's clients, or from `?key=`, or ""."""
    bearer = request.headers.get("Authorization", "").removeprefix("Bearer").strip()
    named = (request.headers.get(name) for name in ("X-Api-Key", "X-Goog-Api-Key"))
    return bearer or next(filter(None, named), "") or request.query.get("key", "")
