"""HTTP gateway to the driver's engine: the server in the driver and the client engine in the workers.

The engine stays in the driver, next to the trainer. Weight updates and the versions of sampled tokens work as they do
without workers.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
from aiohttp import web

from agentrl.engines.http import HttpClient, Refused, most_connections
from agentrl.types.engine import Completion, ContextOverflow, Engine, Sampling, sample, score
from agentrl.types.errors import AgentRLError, DeadPolicy, EngineError
from agentrl.types.task import Message, Task

LONGEST_REQUEST = 1 << 30
FAILED, REFUSED = 503, 400
"""HTTP statuses: the engine failed; the engine rejects the request."""

OWN: dict[int, type[AgentRLError]] = {413: ContextOverflow, 422: DeadPolicy}
"""HTTP statuses of errors that the client raises again with their own class."""


class _Begin(msgspec.Struct):
    """Arguments of `begin_session`, without the messages: only scripts read them, and scripts run in the worker."""

    task: Task
    seed: int


class _Generate(msgspec.Struct):
    token_ids: list[int]
    sampling: Sampling
    session: str
    begin: _Begin | None = None


class _Score(msgspec.Struct):
    prefix: list[int]
    continuations: list[list[int]]
    at: list[int] | None


class _End(msgspec.Struct):
    session: str


class Gateway:
    """Serves engines of this process over HTTP, each under its own path. Requests must carry the token.

    Args:
        host: address to listen on.
    """

    def __init__(self, host: str) -> None:
        self.host, self.token = host, secrets.token_hex(16)
        self._engines: list[Engine] = []
        self._runner: web.AppRunner | None = None
        self._port = 0
        self._opening = asyncio.Lock()

    async def url(self, engine: Engine) -> str:
        """The URL of `engine`. The first call starts the server."""
        async with self._opening:
            if self._runner is None:
                await self._open()
        if not any(engine is known for known in self._engines):
            self._engines.append(engine)
        number = next(k for k, known in enumerate(self._engines) if known is engine)
        return f"http://{self.host}:{self._port}/{number}"

    async def close(self) -> None:
        """Stops the server. Pending requests are cancelled."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _open(self) -> None:
        most_connections()  # raises the limit of open files: every pending request holds one
        app = web.Application(client_max_size=LONGEST_REQUEST)
        app.add_routes([web.post("/{engine}/{call}", self._answer)])
        # Requests of a worker that died are cancelled: nobody reads their replies.
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self.host, 0, backlog=4096)
        await site.start()
        self._port = self._runner.addresses[0][1]

    async def _answer(self, request: web.Request) -> web.Response:
        given = request.headers.get("Authorization", "")
        if not hmac.compare_digest(given, f"Bearer {self.token}"):
            return web.Response(status=401, text="wrong token")
        call = _CALLS.get(request.match_info["call"])
        number = request.match_info["engine"]
        if call is None or not number.isdecimal() or int(number) >= len(self._engines):
            return web.Response(status=404, text=f"no {request.path}")
        kind, function = call
        try:
            asked = msgspec.json.decode(await request.read(), type=kind)
            reply = await function(self._engines[int(number)], asked)
        except tuple(OWN.values()) as error:
            (status,) = (status for status, kind in OWN.items() if isinstance(error, kind))
            return web.Response(status=status, text=error.message)
        except EngineError as error:
            return web.Response(status=FAILED, text=str(error))
        except Exception as error:
            told = str(error) if isinstance(error, AgentRLError) else f"{type(error).__name__}: {error}"
            return web.Response(status=REFUSED, text=told)
        return web.Response(body=msgspec.json.encode(reply), content_type="application/json")


async def _generate(engine: Engine, asked: _Generate) -> Completion:
    if asked.begin is not None:
        engine.begin_session(asked.session, asked.begin.task, [], asked.begin.seed)
    return await sample(engine, asked.token_ids, asked.sampling, asked.session)


async def _score(engine: Engine, asked: _Score) -> list[list[float]]:
    return await score(engine, asked.prefix, asked.continuations, asked.at)


async def _end(engine: Engine, asked: _End) -> None:
    engine.end_session(asked.session)


_CALLS: dict[str, tuple[Any, Callable[[Engine, Any], Awaitable[Any]]]] = {
    "generate": (_Generate, _generate),
    "score": (_Score, _score),
    "end": (_End, _end),
}


class GatewayEngine(Engine):
    """Client of an engine behind a gateway.

    Args:
        url, token: URL of the engine at the gateway, and the gateway's token.
        name, trainable, max_context: attributes of the driver's engine.
        timeout_s: timeout of one request in seconds.
    """

    def __init__(self, url: str, token: str, *, name: str, trainable: bool, max_context: int, timeout_s: float) -> None:
        self.name, self.trainable, self.max_context = name, trainable, max_context
        self._url = url
        self._client = HttpClient(timeout_s=timeout_s, headers={"Authorization": f"Bearer {token}"})
        self._begun: dict[str, _Begin] = {}
        self._chores: set[asyncio.Task[None]] = set()

    def begin_session(self, session: str, task: Task, messages: list[Message], seed: int) -> None:
        """Sent to the engine with the session's first request."""
        self._begun[session] = _Begin(task, seed)

    async def generate(self, token_ids: Sequence[int], sampling: Sampling, session: str) -> Completion:
        """Calls `generate` of the driver's engine.

        Raises:
            ContextOverflow: the prompt fills the context.
            DeadPolicy: the policy's log-probabilities are not finite.
            EngineError: the engine failed or is unreachable.
            Refused: the engine rejects the request.
        """
        asked = _Generate(list(token_ids), sampling, session, self._begun.pop(session, None))
        completion: Completion = await self._post("generate", asked, Completion)
        return completion

    async def score(
        self, prefix: Sequence[int], continuations: Sequence[Sequence[int]], at: Sequence[int] | None = None
    ) -> list[list[float]]:
        """Calls `score` of the driver's engine. Raises the same errors as `generate`."""
        asked = _Score(list(prefix), [list(one) for one in continuations], None if at is None else list(at))
        scores: list[list[float]] = await self._post("score", asked, list[list[float]])
        return scores

    def end_session(self, session: str) -> None:
        """Sends the end of the session in the background."""
        self._begun.pop(session, None)
        task = asyncio.create_task(self._end(session))
        self._chores.add(task)
        task.add_done_callback(self._chores.discard)

    async def close(self) -> None:
        """Waits for background requests and closes the connections."""
        await asyncio.gather(*self._chores)
        await self._client.close()

    async def _end(self, session: str) -> None:
        try:
            await self._post("end", _End(session), type(None))
        except AgentRLError:
            return  # harmless: the engine evicts the least recently used sessions by itself

    async def _post(self, call: str, asked: Any, kind: Any) -> Any:
        try:
            return await self._client.post(f"{self._url}/{call}", asked, kind)
        except Refused as refused:
            if (kind := OWN.get(refused.status)) is None:
                raise
            raise kind(refused.text) from None
