"""Connection to an MCP server, per episode or shared by all."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from agentrl.tools.builtin.mcp.settings import McpSettings
from agentrl.tools.builtin.mcp.stdio import StdioServer, messages
from agentrl.types.clocks.deadline import Deadline
from agentrl.types.errors import InfraError, ToolError, ToolServerEnded
from agentrl.types.http.body import Bounds

PAGES = 100
"""Maximum pages read of a server's list of tools."""

CLOSE_S = 10.0
"""Seconds for a session to close; then it is cancelled."""
PING_S = 10.0
"""Seconds for a remote server to answer a ping after a call timed out."""
LIST_S = 5.0
"""Seconds for reading the list of tools again. Bounds the delay of the previous call's result."""

CLOSED = -32000
"""JSON-RPC error code of the SDK for a closed connection."""

T = TypeVar("T")


class ServerLost(InfraError):
    """An MCP server did not start or died."""


class ServerEnded(ServerLost, ToolServerEnded):
    """The MCP server died or froze while only this episode called its tools."""


class Connection:
    """Session with a server.

    Attributes:
        tools: tools that the server offers now, as the SDK's records. A new list after each refresh.
        shared: True if several episodes may use it.
        episodes: number of episodes that use it now, if it is shared.
    """

    def __init__(self, settings: McpSettings) -> None:
        self._settings = settings
        self._key = settings.url or str(id(self))
        self.shared, self.episodes = bool(settings.shared), 0
        self.tools: list[Any] = []
        self._session: Any = None
        self._server: StdioServer | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()
        self._why = ""
        self._listing: asyncio.Task[None] | None = None

    @property
    def lost(self) -> bool:
        """True if the connection was open and is closed now."""
        return self._keeper is not None and (self._keeper.done() or self._stop.is_set())

    async def open(self) -> None:
        """Connects. Call it only once.

        Raises:
            ServerLost: the server does not start, or does not answer within `timeout_s`.
        """
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # Separate task: the SDK's scopes must be exited in the task that entered them.
        self._keeper = asyncio.create_task(self._keep(ready))
        try:
            async with Deadline(self._settings.timeout_s):
                await ready
        except TimeoutError:
            self._why = f"no answer within {self._settings.timeout_s:g} s"
            error = self._lost()
            await self.close()
            raise error from None
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Closes the session, and the server if it is our child process."""
        if self._keeper is None:
            return
        self._stop.set()
        if self._session is not None:  # the closing handshake with a remote server may hang
            await asyncio.wait([self._keeper], timeout=CLOSE_S)
        self._keeper.cancel()
        await asyncio.wait([self._keeper])

    async def call(self, name: str, arguments: dict[str, Any]) -> Any:
        """Calls a tool and refreshes the list of tools if it may have changed. If that fails, the old list stays.

        Raises:
            ToolError: the server answers with an error or an invalid result.
            ServerEnded: the server died, and only this call was in flight.
            ServerLost: the server died.
        """
        with _asks(self._key):
            try:
                result = await self._asked(self._session.call_tool(name, arguments))
            except ServerLost:
                raise self._lost(others=_under_way[self._key] - 1) from None
        if self.changes:
            await self._list_again()
        return result

    async def check(self) -> None:
        """Checks after a timed-out call whether the server is frozen or only slow.

        Raises:
            ServerEnded: frozen, and no other call is in flight.
            ServerLost: frozen.
        """
        if self._session is None or self.lost:
            return
        if self._server is not None:
            self._why = "its process is stopped" if self._server.stopped() else ""
        else:
            try:
                async with Deadline(PING_S):
                    await self._asked(self._session.send_ping())
            except TimeoutError:
                self._why = f"it answered neither the call nor, within {PING_S:g} s, a ping"
            except ToolError:  # it answers
                return
        if self._why:
            self._stop.set()
            raise self._lost(others=_under_way[self._key])

    async def _asked(self, question: Awaitable[T]) -> T:
        """Awaits a request unless the connection closes first."""
        from anyio import BrokenResourceError, ClosedResourceError
        from mcp import MCPError
        from pydantic import ValidationError

        assert self._keeper is not None
        asked = asyncio.ensure_future(question)
        try:
            await asyncio.wait([asked, self._keeper], return_when=asyncio.FIRST_COMPLETED)
            if not asked.done():
                raise self._lost()
            return await asked
        except MCPError as error:
            said = error.error.message
            too_long = "byte limit" in said  # the SDK's message for an event above max_sse_event_size
            if (error.error.code == CLOSED and not too_long) or said == "Session terminated":
                self._why = self._why or said
                self._stop.set()
                raise self._lost() from None
            raise ToolError(said) from None
        except (ClosedResourceError, BrokenResourceError):
            raise self._lost() from None
        except ValidationError as error:
            first = error.errors()[0]
            raise ToolError(f"the server's answer is no result of MCP: {first['loc']}: {first['msg']}") from None
        finally:
            asked.cancel()

    async def _keep(self, ready: asyncio.Future[None]) -> None:
        from mcp import ClientSession

        try:
            async with (
                self._transport() as (reading, writing),
                ClientSession(reading, writing, message_handler=self._heard) as session,
            ):
                await session.initialize()
                await self._list(session)
                self._session = session
                if not ready.done():
                    ready.set_result(None)
                await self._stop.wait()
        except Exception as error:
            self._why = self._why or _said(error)
            if not ready.done():
                ready.set_exception(self._lost())

    @asynccontextmanager
    async def _transport(self) -> AsyncIterator[tuple[Any, Any]]:
        settings = self._settings
        if settings.command is not None:
            self._server = await StdioServer.start(settings)
            async with messages(self._server) as streams:
                yield streams
            return
        import httpx2
        from mcp.client.streamable_http import streamable_http_client

        from agentrl.types.http.transport import Transport

        assert settings.url is not None
        bounds = Bounds(most=settings.max_bytes, packed=settings.max_bytes, values=math.inf)
        client = httpx2.AsyncClient(
            transport=Transport(bounds=bounds, events=False),  # of streams of events, the SDK bounds each
            headers=settings.headers,
            timeout=httpx2.Timeout(settings.timeout_s, read=None),
            trust_env=False,
        )
        async with (
            client,
            streamable_http_client(settings.url, http_client=client, max_sse_event_size=settings.max_bytes) as streams,
        ):
            yield streams

    async def _heard(self, message: Any) -> None:
        """Handles notifications. Starts a task, because the SDK reads no answers while this handler runs."""
        if getattr(message, "method", "") == "notifications/tools/list_changed" and self._session is not None:
            self._listing = asyncio.create_task(self._list_again())

    async def _list_again(self) -> None:
        with suppress(ToolError, ServerLost, TimeoutError):  # the next call reports it
            async with Deadline(LIST_S):
                await self._asked(self._list(self._session))

    @property
    def changes(self) -> bool:
        """True if the server announces that its list of tools may change."""
        tools = self._session.server_capabilities.tools if self._session.server_capabilities else None
        return bool(tools and tools.list_changed)

    async def _list(self, session: Any) -> None:
        from mcp import types

        found, cursor = list[Any](), None
        for _ in range(PAGES):
            page = await session.list_tools(params=types.PaginatedRequestParams(cursor=cursor) if cursor else None)
            found += page.tools
            if not (cursor := page.next_cursor):
                break
        if found != self.tools:
            self.tools = found

    def _lost(self, others: int = 1) -> ServerLost:
        """Makes the error for a server that died.

        Args:
            others: other calls in flight. Without any, the current call may have killed the server.
        """
        state = self._server.state() if self._server is not None else ""
        return (ServerLost if others else ServerEnded)(
            f"{self._settings.server}: {'; '.join(filter(None, [self._why, state])) or 'the connection ended'}",
            remedy="start it by hand to see what it says" if self._server is not None else "see its own log",
        )


# Calls that a server is asked now, by its URL; of a process by its connection.
_under_way: Counter[str] = Counter()


@contextmanager
def _asks(key: str) -> Iterator[None]:
    _under_way[key] += 1
    try:
        yield
    finally:
        _under_way[key] -= 1
        if not _under_way[key]:
            del _under_way[key]


# Shared connections by event loop and settings, each with the task that opens it. Closing the loop cancels their
# keepers. The task is separate, so that a cancelled episode does not cancel it for others.
_shared: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, dict[Connection, asyncio.Task[None]]]] = (
    WeakKeyDictionary()
)


async def connect(settings: McpSettings) -> Connection:
    """Returns an open connection: a new one, or the shared one of this event loop that the fewest episodes use.

    Raises:
        ServerLost: the server does not start, or does not answer.
    """
    if not settings.shared:
        connection = Connection(settings)
        await connection.open()
        return connection
    pools = _shared.setdefault(asyncio.get_running_loop(), {})
    key = settings.model_dump_json()
    pool = pools[key] = {each: opening for each, opening in pools.get(key, {}).items() if not _over(each, opening)}
    idle = any(not each.episodes for each in pool)
    if len(pool) < settings.shared and not idle:
        connection = Connection(settings)
        pool[connection] = asyncio.create_task(connection.open())
    connection = min(pool, key=lambda each: each.episodes)
    connection.episodes += 1
    try:
        await asyncio.shield(pool[connection])
    except BaseException:
        connection.episodes -= 1
        raise
    return connection


async def leave(connection: Connection) -> None:
    """Ends an episode's use of a connection: closes it unless others may share it."""
    if connection.shared:
        connection.episodes -= 1
    else:
        await connection.close()


def _over(connection: Connection, opening: asyncio.Task[None]) -> bool:
    """Returns True if opening failed or the opened connection is lost."""
    return opening.done() and (opening.cancelled() or opening.exception() is not None or connection.lost)


def _said(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return " ".join((str(error) or type(error).__name__).split())[:300]
