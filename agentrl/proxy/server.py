"""The proxy's HTTP side: `/v1/chat/completions` as programs expect it, and sessions that become stored episodes.

    POST /v1/chat/completions            session by header X-Session-Id, else by API key
    POST /s/NAME/v1/chat/completions     session by path (base URL http://HOST:PORT/s/NAME/v1)
    POST /s/NAME/end                     {"rewards": {"solved": 1.0}, "answer": "..."}: stores the episode
    GET  /v1/models, /s/NAME/v1/models, /health

A session that is not ended is stored, without a reward, when it has been idle for a while or the proxy stops.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from agentrl.engines.http import Refused
from agentrl.proxy.messages import BadRequest
from agentrl.proxy.recorder import ChatReply, ProxyContext, Recorder
from agentrl.types.engine import ContextOverflow
from agentrl.types.episode import Episode
from agentrl.types.errors import InfraError, RenderError
from agentrl.types.values import ValueRefused, number, text
from agentrl.types.values import rewards as checked_rewards

STATUS: dict[type[Exception], tuple[int, str]] = {
    ContextOverflow: (400, "context_length_exceeded"),
    BadRequest: (400, "invalid_request_error"),
    RenderError: (400, "invalid_request_error"),
    Refused: (400, "invalid_request_error"),
    ValueRefused: (400, "invalid_request_error"),
    InfraError: (503, "engine_error"),
}
"""What a program is told of an error: HTTP status and code."""


class Proxy:
    """Sessions, and the web application that feeds them.

    Args:
        store: takes an episode when its session has ended.
        taken: ids that the run has already; a session of such a name gets `NAME~1`, ...
        idle_s: seconds without a request after which a session ends.
    """

    def __init__(
        self, context: ProxyContext, store: Callable[[Episode], None], *, model: str, taken: set[str], idle_s: float
    ) -> None:
        self.context, self.model, self.idle_s = context, model, idle_s
        self.sessions: dict[str, Recorder] = {}
        self._store, self._taken = store, set(taken)

    def app(self) -> web.Application:
        """The web application."""
        app = web.Application(client_max_size=64 << 20)
        for prefix in ("", "/s/{session}"):
            app.router.add_post(f"{prefix}/v1/chat/completions", self._chat)
            app.router.add_get(f"{prefix}/v1/models", self._models)
        app.router.add_post("/s/{session}/end", self._end)
        app.router.add_get("/health", self._health)
        app.cleanup_ctx.append(self._tend)
        return app

    def end(self, name: str, *, rewards: dict[str, float] | None = None, answer: str | None = None) -> Episode | None:
        """Stores a session as an episode; None if nothing that it said was seen."""
        recorder = self.sessions.pop(name)
        self.context.engine.end_session(recorder.name)
        episode = recorder.episode(rewards=rewards, answer=answer)
        if not episode.turns:
            return None
        self._store(episode)
        return episode

    def _recorder(self, name: str) -> Recorder:
        if name not in self.sessions:
            id, number = name, 0
            while id in self._taken:
                number += 1
                id = f"{name}~{number}"
            self._taken.add(id)
            self.sessions[name] = Recorder(id, self.context, group=name)
        return self.sessions[name]

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        try:
            body = await _body(request)
            recorder = self._recorder(_session_of(request))
            again = request.headers.get("X-Stainless-Retry-Count", "0") != "0"  # OpenAI's clients say so
            said = await recorder.reply(body, n=int(body.get("n") or 1), retried=again)
        except tuple(STATUS) as error:
            return _refusal(error)
        if request.transport is None or request.transport.is_closing():
            recorder.undelivered(said)
        envelope = {"id": f"chatcmpl-{time.time_ns():x}", "created": int(time.time()), "model": self.model}
        if body.get("stream"):
            include = bool((body.get("stream_options") or {}).get("include_usage"))
            return await _stream(request, envelope, said, usage=include)
        choices = [
            {"index": k, "message": one.message, "finish_reason": one.finish, "logprobs": None}
            for k, one in enumerate(said)
        ]
        return web.json_response({**envelope, "object": "chat.completion", "choices": choices, "usage": _usage(said)})

    async def _end(self, request: web.Request) -> web.Response:
        name = request.match_info["session"]
        if name not in self.sessions:
            return _problem(404, "no_such_session", f"there is no session {name!r}; it may have ended already")
        try:
            body = await _body(request) if request.can_read_body else {}
            rewards, answer = checked_rewards(body.get("rewards")), body.get("answer")
            number(sum(rewards.values()), "the sum of the rewards")
        except tuple(STATUS) as error:
            return _refusal(error)
        episode = self.end(name, rewards=rewards, answer=None if answer is None else text(answer))
        stored = (
            {} if episode is None else {"episode": episode.id, "turns": len(episode.turns), "reward": episode.reward}
        )
        return web.json_response(stored)

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response(
            {"object": "list", "data": [{"id": self.model, "object": "model", "owned_by": "agentrl"}]}
        )

    async def _health(self, request: web.Request) -> web.Response:
        return web.json_response({"sessions": len(self.sessions)})

    async def _tend(self, app: web.Application):  # type: ignore[no-untyped-def]
        """Ends idle sessions while the application runs, and the others when it stops."""

        async def sweep() -> None:
            while True:
                await asyncio.sleep(min(1.0, self.idle_s / 4))
                now = time.monotonic()
                for name, recorder in list(self.sessions.items()):
                    if not recorder.busy and now - recorder.touched > self.idle_s:
                        self.end(name)

        sweeping = asyncio.create_task(sweep())
        yield
        sweeping.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await sweeping
        for name in list(self.sessions):
            self.end(name)


@asynccontextmanager
async def listening(proxy: Proxy, host: str, port: int) -> AsyncIterator[str]:
    """Serves the proxy until the block ends; yields its address. Port 0 selects a free port."""
    runner = web.AppRunner(proxy.app())
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        yield f"http://{host}:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def _session_of(request: web.Request) -> str:
    """Path, header or API key, in this order.

    Raises:
        BadRequest: none of them names a session.
    """
    key = request.headers.get("Authorization", "").removeprefix("Bearer").strip()
    name = request.match_info.get("session") or request.headers.get("X-Session-Id") or key
    if not name:
        raise BadRequest(
            "the request belongs to no session",
            remedy="base URL http://HOST:PORT/s/NAME/v1, or a header X-Session-Id, or an API key per episode",
        )
    return name


async def _stream(
    request: web.Request, envelope: dict[str, Any], said: list[ChatReply], *, usage: bool
) -> web.StreamResponse:
    """The finished reply as a stream of events: programs that read streams get their form."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    await response.prepare(request)

    async def send(choices: list[dict[str, Any]], **more: Any) -> None:
        chunk = {**envelope, "object": "chat.completion.chunk", "choices": choices, **more}
        await response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")

    for index, one in enumerate(said):
        calls = [{"index": k, **call} for k, call in enumerate(one.message.get("tool_calls", ()))]
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": one.message["content"]}]
        deltas += [{"tool_calls": [call]} for call in calls]
        for delta in deltas:
            await send([{"index": index, "delta": delta, "finish_reason": None}])
        await send([{"index": index, "delta": {}, "finish_reason": one.finish}])
    if usage:
        await send([], usage=_usage(said))
    await response.write(b"data: [DONE]\n\n")
    await response.write_eof()
    return response


def _usage(said: list[ChatReply]) -> dict[str, int]:
    prompt, completion = said[0].prompt_tokens, sum(one.completion_tokens for one in said)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


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


def _refusal(error: Exception) -> web.Response:
    status, code = next(found for kind, found in STATUS.items() if isinstance(error, kind))
    return _problem(status, code, str(error))


def _problem(status: int, code: str, message: str) -> web.Response:
    return web.json_response({"error": {"message": message, "type": code, "code": code}}, status=status)
