"""The driver's engine for workers in other places: HTTP in front of it, and an engine that asks there.

The engine stays beside the trainer: new weights reach it as they do without workers, and its tokens tell their version.
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
from agentrl.types.engine import Completion, ContextOverflow, Engine, Sampling
from agentrl.types.errors import AgentRLError, DeadPolicy, EngineError
from agentrl.types.task import Message, Task

LONGEST_REQUEST = 1 << 30
FAILED, REFUSED = 503, 400
"""Statuses: the engine failed; the request is wrong for this engine."""

OWN: dict[int, type[AgentRLError]] = {413: ContextOverflow, 422: DeadPolicy}
"""Statuses of errors that are raised again as what they are."""


class _Begin(msgspec.Struct):
    """What an engine is told of an episode; not the conversation, which only scripts read: workers play those."""

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
    """Serves engines of this process, each under a path of its own, to who has the token.

    Args:
        host: the address to listen at.
    """

    def __init__(self, host: str) -> None:
        self.host, self.token = host, secrets.token_hex(16)
        self._engines: list[Engine] = []
        self._runner: web.AppRunner | None = None
        self._port = 0
        self._opening = asyncio.Lock()

    async def url(self, engine: Engine) -> str:
        """Where `engine` is served from now on."""
        async with self._opening:
            if self._runner is None:
                await self._open()
        if not any(engine is known for known in self._engines):
            self._engines.append(engine)
        number = next(k for k, known in enumerate(self._engines) if known is engine)
        return f"http://{self.host}:{self._port}/{number}"

    async def close(self) -> None:
        """Stops to listen; requests under way are cancelled."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _open(self) -> None:
        most_connections()  # raises the limit of open files: every request under way holds one
        app = web.Application(client_max_size=LONGEST_REQUEST)
        app.add_routes([web.post("/{engine}/{call}", self._answer)])
        # A worker that dies takes its requests along: the engine need not finish them.
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
    return await engine.generate(asked.token_ids, asked.sampling, asked.session)


async def _score(engine: Engine, asked: _Score) -> list[list[float]]:
    return await engine.score(asked.prefix, asked.continuations, asked.at)


async def _end(engine: Engine, asked: _End) -> None:
    engine.end_session(asked.session)


_CALLS: dict[str, tuple[Any, Callable[[Engine, Any], Awaitable[Any]]]] = {
    "generate": (_Generate, _generate),
    "score": (_Score, _score),
    "end": (_End, _end),
}


class GatewayEngine:
    """An engine behind a gateway.

    Args:
        url, token: the gateway's.
        name, trainable, max_context: the engine's.
        timeout_s: of one request.
    """

    checkpoint_names = takes_adapters = False  # the driver updates the engine

    def __init__(self, url: str, token: str, *, name: str, trainable: bool, max_context: int, timeout_s: float) -> None:
        self.name, self.trainable, self.max_context = name, trainable, max_context
        self._url = url
        self._client = HttpClient(timeout_s=timeout_s, headers={"Authorization": f"Bearer {token}"})
        self._begun: dict[str, _Begin] = {}
        self._chores: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """The driver has started it."""

    def begin_session(self, session: str, task: Task, messages: list[Message], seed: int) -> None:
        """Told with the session's first request."""
        self._begun[session] = _Begin(task, seed)

    async def generate(self, token_ids: Sequence[int], sampling: Sampling, session: str) -> Completion:
        """As the engine does.

        Raises:
            ContextOverflow: the prompt fills the context.
            DeadPolicy: the policy's log-probabilities are not finite.
            EngineError: the engine failed, or cannot be reached.
            Refused: the request is wrong for it.
        """
        asked = _Generate(list(token_ids), sampling, session, self._begun.pop(session, None))
        completion: Completion = await self._post("generate", asked, Completion)
        return completion

    async def score(
        self, prefix: Sequence[int], continuations: Sequence[Sequence[int]], at: Sequence[int] | None = None
    ) -> list[list[float]]:
        """As the engine does; raises as `generate`."""
        asked = _Score(list(prefix), [list(one) for one in continuations], None if at is None else list(at))
        scores: list[list[float]] = await self._post("score", asked, list[list[float]])
        return scores

    async def update(self, weights: Any, version: int) -> None:
        """Not from here: the trainer has the engine itself."""
        raise TypeError("a worker cannot update the driver's engine")

    def end_session(self, session: str) -> None:
        """Told at once, without waiting for an answer."""
        self._begun.pop(session, None)
        task = asyncio.create_task(self._end(session))
        self._chores.add(task)
        task.add_done_callback(self._chores.discard)

    async def close(self) -> None:
        """Closes the connections."""
        await asyncio.gather(*self._chores)
        await self._client.close()

    async def _end(self, session: str) -> None:
        try:
            await self._post("end", _End(session), type(None))
        except AgentRLError:
            return  # The engine forgets sessions by itself, the longest unused first.

    async def _post(self, call: str, asked: Any, kind: Any) -> Any:
        try:
            return await self._client.post(f"{self._url}/{call}", asked, kind)
        except Refused as refused:
            if (kind := OWN.get(refused.status)) is None:
                raise
            raise kind(refused.text) from None
