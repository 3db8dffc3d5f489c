"""The transport of every request that leaves for a server of others, in the form that httpx and SDKs on it take.

It connects to addresses that it has checked, unpacks and bounds what comes back, and ends what takes too long.
Redirects are requests of their own, and pass through it one by one. A proxy of the environment is not asked: what is
checked would not be what is connected to.
"""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import re
import select
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import Any, TypeVar

import httpcore2
import httpx2

from agentrl.types.clocks.deadline import Deadline
from agentrl.types.clocks.heartbeat import heartbeat
from agentrl.types.clocks.threads import give_way, in_thread
from agentrl.types.http.body import PACKINGS, Body, BodyRefused, Bounds
from agentrl.types.http.hosts import HostList
from agentrl.types.http.pool import ConnectionPool

HEAD = 1 << 16
"""Bytes that a server may send before a body: the headers, and answers of a status below 200."""

PIECES = 100_000
"""Chunks of a body. Each costs the driver as much as a long one, however short it is."""

ADDRESSES = 16
"""Addresses of a name that are tried."""

NEXT_S = 2.0
"""How long an address may take before the next one is tried."""

IDLE_S = 2.0
"""How long an idle connection is kept: shorter than servers do, which would close it under the next request."""

END_S = 0.1
"""How long what marks the end may take behind the last byte of a packed body. Then its connection can be used again."""

_READ = 1 << 14
"""Bytes that are read at a time. What they hold is read without letting anyone else run."""

T = TypeVar("T")


class Unreadable(httpx2.DecodingError, httpx2.StreamError):
    """A body that cannot be read; its cause is the BodyRefused.

    Two kinds of error, because SDKs expect the one or the other.
    """


class Transport(httpx2.AsyncBaseTransport):
    """Sends requests, each on a connection of its own among those that are kept.

    A request may have bounds and seconds of its own: `extensions={"bounds": Bounds(...), "seconds": 5.0}`.

    Args:
        hosts: which may be reached; None: all.
        bounds: of bodies.
        seconds: for a request, from its beginning to the last byte that is read, as far as it waits for the server.
            None: any time.
        events: whether a stream of events is bounded as other bodies are.
        connections: at a time. Further requests wait.
    """

    def __init__(
        self,
        hosts: HostList | None = None,
        bounds: Bounds = Bounds(),  # noqa: B008 - frozen
        *,
        seconds: float | None = None,
        events: bool = True,
        connections: int = 100,
    ) -> None:
        self._hosts, self._bounds, self._seconds, self._events = hosts, bounds, seconds, events
        connect = partial(
            httpcore2.AsyncHTTPConnection,
            ssl_context=_trusted(),
            keepalive_expiry=IDLE_S,
            network_backend=_Network(hosts),
        )
        self._pool = ConnectionPool(connect, connections)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Sends one request.

        Raises:
            ToolError: its host may not be reached.
            httpx2.RequestError: no answer, or not one that can be read.
        """
        host, port = server_of(request.url)
        if self._hosts is not None:
            self._hosts.check(host, port)
        if request.headers.get("Accept-Encoding", "identity") != "identity":
            request.headers["Accept-Encoding"] = PACKINGS
        patience = _Patience(request.extensions.get("seconds", self._seconds))
        asked = httpcore2.Request(
            request.method,
            httpcore2.URL(
                scheme=request.url.raw_scheme, host=request.url.raw_host, port=port, target=request.url.raw_path
            ),
            headers=request.headers.raw,
            content=request.stream,
            extensions=request.extensions,
        )
        with _named_as_httpx():
            answer, connection = await patience.of(self._pool.send(asked))
        left = partial(self._pool.give_back, connection)
        if not isinstance(stream := answer.extensions["network_stream"], _Connection):
            await connection.aclose()
            left()
            raise httpx2.RemoteProtocolError("it changes to another protocol than HTTP")
        stream.head_is_read()
        return self._response(request, answer, patience, left)

    async def aclose(self) -> None:
        """Closes the connections."""
        await self._pool.close()

    def _response(
        self, request: httpx2.Request, answer: httpcore2.Response, patience: _Patience, left: Callable[[], None]
    ) -> httpx2.Response:
        headers = httpx2.Headers(answer.headers)
        events = headers.get("Content-Type", "").lower().startswith("text/event-stream")
        bounds = request.extensions.get("bounds", self._bounds) if self._events or not events else None
        if encoding := headers.pop("Content-Encoding", ""):
            headers.pop("Content-Length", None)  # the length of something else
        stream = _Stream(answer.stream, encoding, bounds, patience, left)
        return httpx2.Response(answer.status, headers=headers, stream=stream, extensions=answer.extensions)


class _Stream(httpx2.AsyncByteStream):
    """The body of a response, as its client reads it.

    Args:
        left: is called once nothing of it is read any more.
    """

    def __init__(
        self, parts: Any, encoding: str, bounds: Bounds | None, patience: _Patience, left: Callable[[], None]
    ) -> None:
        self._parts, self._encoding, self._bounds, self._patience = parts, encoding, bounds, patience
        self._left: Callable[[], None] | None = left

    async def __aiter__(self) -> AsyncIterator[bytes]:
        parts, number = aiter(self._parts), 0
        try:
            body = Body(self._encoding, self._bounds)
            with _named_as_httpx():
                while not body.over and (part := await self._patience.of(anext(parts, None))) is not None:
                    for piece in body.take(part):
                        yield piece
                        if body.packed:
                            await asyncio.sleep(0)  # a small part may unpack to much
                    await give_way()  # what was read at once may hold thousands
                    number += 1
                    if number > PIECES and self._bounds is not None:
                        raise BodyRefused(f"it is cut into more than {PIECES:,} pieces")
            body.end()
        except BodyRefused as error:
            raise Unreadable(str(error)) from error
        if body.over:
            with suppress(TimeoutError, httpx2.HTTPError), _named_as_httpx():
                async with Deadline(END_S):
                    await anext(parts, None)

    async def aclose(self) -> None:
        left, self._left = self._left, None
        if left is None:
            return
        try:
            with _named_as_httpx():
                await self._parts.aclose()
        finally:
            left()


class _Network(httpcore2.AsyncNetworkBackend):
    """Connects to addresses that may be reached: whoever owns a name decides nothing between check and connection."""

    def __init__(self, hosts: HostList | None) -> None:
        self._hosts, self._sockets = hosts, httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - this and those below are the signatures of httpcore
        local_address: str | None = None,
        socket_options: Any = None,
    ) -> httpcore2.AsyncNetworkStream:
        try:
            async with Deadline(timeout) if timeout is not None else nullcontext():
                addresses = await _addresses_of(host)
        except TimeoutError:
            raise httpcore2.ConnectTimeout(f"the name {host} is not resolved within {timeout} s") from None
        except (OSError, UnicodeError) as error:  # the latter: no name could be so
            raise httpcore2.ConnectError(error) from error
        if self._hosts is not None:
            addresses = self._hosts.check_addresses(host, port, addresses)
        addresses = addresses[:ADDRESSES]
        for address in addresses[:-1]:
            try:
                return await self._connected(address, port, NEXT_S, socket_options)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout):
                continue
        return await self._connected(addresses[-1], port, timeout, socket_options)

    async def _connected(self, address: str, port: int, seconds: float | None, options: Any) -> _Connection:
        try:
            return _Connection(await self._sockets.connect_tcp(address, port, seconds, None, options))
        except httpcore2.ConnectError as error:
            cause = _first_cause(error)
            raise httpcore2.ConnectError(cause) from cause


class _Connection(httpcore2.AsyncNetworkStream):
    """A connection on which what precedes a body is bounded. h11 bounds one head, and answers of 1xx come before it."""

    def __init__(self, stream: httpcore2.AsyncNetworkStream) -> None:
        self._stream = stream
        self._socket: socket.socket | None = stream.get_extra_info("socket")
        self._head: int | None = None  # bytes of it so far; None: it is read

    def head_is_read(self) -> None:
        """Marks the head as complete: a body follows."""
        self._head = None

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        if self._head is not None and self._head >= HEAD:
            raise httpcore2.RemoteProtocolError(f"its headers are too large: more than {HEAD >> 10} KiB")
        with _broken_as(httpcore2.ReadError):
            data = await self._stream.read(min(max_bytes, _READ), timeout)
        await asyncio.sleep(0)  # a connection with TLS does not wait for what has arrived
        if self._head is not None:
            if self._head and not data:
                raise httpcore2.RemoteProtocolError("it ends before its headers do")
            self._head += len(data)
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109
        self._head = 0
        with _broken_as(httpcore2.WriteError):
            await self._stream.write(buffer, timeout)

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> _Connection:
        try:
            with _broken_as(httpcore2.ConnectError):
                return _Connection(await self._stream.start_tls(ssl_context, server_hostname, timeout))
        except BaseException:
            await self.aclose()
            raise

    async def aclose(self) -> None:
        await self._stream.aclose()

    def get_extra_info(self, info: str) -> Any:
        if info == "is_readable":  # asked for each time that the connection is used again
            return self._socket is None or _has_something(self._socket)
        return self._stream.get_extra_info(info)


class _Patience:
    """The time that a server has, over several waits."""

    def __init__(self, seconds: float | None) -> None:
        self._seconds = self._left = seconds

    async def of(self, waiting: Awaitable[T]) -> T:
        """Returns the result of an awaitable.

        Raises:
            httpx2.ReadTimeout: it did not come within the time that is left.
        """
        if self._left is None:
            return await waiting
        heart = heartbeat()
        heart.listen()
        before, deadline = heart.lived(), Deadline(max(self._left, 0.0))
        try:
            async with deadline:
                return await waiting
        except TimeoutError:
            if deadline.expired():
                raise httpx2.ReadTimeout(f"no complete answer within {self._seconds:g} s") from None
            raise
        finally:
            self._left -= heart.lived() - before
            heart.ignore()


async def _addresses_of(host: str) -> list[str]:
    """The addresses of a name, in the order in which they are to be tried; or the address that it is."""
    try:
        return [str(ipaddress.ip_address(host))]
    except ValueError:
        # A thread of its own: a name that is slow to resolve holds up nobody else.
        found = await in_thread(lambda: socket.getaddrinfo(host, None, type=socket.SOCK_STREAM))
        return list(dict.fromkeys(each[4][0] for each in found))


_HOST = re.compile(r"[0-9A-Za-z._-]+|[0-9A-Fa-f:.]+:[^/]*")


def server_of(url: httpx2.URL) -> tuple[str, int]:
    """The host and the port that a URL leads to.

    Raises:
        httpx2.UnsupportedProtocol: it leads to no server.
    """
    default = {"http": 80, "https": 443}.get(url.scheme)
    host, port = url.raw_host.decode("ascii"), url.port if url.port is not None else default
    if default is None or port is None or not 0 < port < 1 << 16 or not _HOST.fullmatch(host):
        raise httpx2.UnsupportedProtocol(
            f"{str(url)[:200]!r} is no URL of the web; it begins with http:// or https:// and a host"
        )
    return host, port


@functools.cache
def _trusted() -> ssl.SSLContext:
    """The certificates of this machine. To read them takes 20 ms."""
    return httpcore2.default_ssl_context()


@contextmanager
def _named_as_httpx() -> Iterator[None]:
    """Errors of httpcore become those of httpx, which have the same names, with the error that led to them."""
    try:
        yield
    except (
        httpcore2.TimeoutException,
        httpcore2.NetworkError,
        httpcore2.ProtocolError,
        httpcore2.UnsupportedProtocol,
    ) as error:
        kind: Callable[[str], Exception] = getattr(httpx2, type(error).__name__)
        # Its pool takes causes away; they are in the arguments as well.
        raise kind(str(error)) from next((each for each in error.args if isinstance(each, Exception)), error)


@contextmanager
def _broken_as(kind: type[Exception]) -> Iterator[None]:
    """Errors of TLS and of sockets, some of which httpcore lets pass, become errors of httpcore."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise kind(error) from error


def _has_something(connection: socket.socket) -> bool:
    """Returns True if an idle connection is readable: usually the server has closed it."""
    if connection.fileno() < 0:
        return True
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(0))


def _first_cause(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error
