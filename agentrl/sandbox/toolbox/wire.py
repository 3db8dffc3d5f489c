"""Host side of the toolbox protocol (described in `tools/toolbox/toolbox.py`)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from agentrl.types.clocks.deadline import Deadline
from agentrl.types.sandbox import SandboxBroken, SandboxExpired, SandboxLost

Field = str | int | float | Sequence[str] | Mapping[str, str]

MARGIN_S = 15.0
"""Seconds after a request's timeout before the sandbox counts as lost."""

INQUEST_S = 10.0
"""Maximum of seconds to find the cause of the end of a sandbox."""


@dataclass(frozen=True)
class Response:
    """Reply of the toolbox."""

    fields: dict[str, str]
    body: bytes


class NulByte(ValueError):
    """An argument, a path or a setting of the environment holds a NUL byte."""


def encode(fields: Mapping[str, Field], body: bytes = b"") -> bytes:
    """Encodes one frame.

    Raises:
        NulByte: a field holds a NUL, which neither arguments nor paths can.
        UnicodeEncodeError: a field holds a surrogate that does not encode a byte.
    """
    parts: list[str] = []
    for key, value in fields.items():
        if isinstance(value, str | int | float):
            parts.append(f"{key}={value}")
        elif isinstance(value, Mapping):
            parts += [f"{key}={name}={setting}" for name, setting in value.items()]
        else:
            parts += [f"{key}={item}" for item in value]
    text = "\0".join(parts)
    if text.count("\0") != len(parts) - 1:
        raise NulByte("arguments, environment and paths cannot hold NUL bytes")
    header = text.encode("utf-8", "surrogateescape")
    return len(header).to_bytes(4, "big") + len(body).to_bytes(4, "big") + header + body


class Wire(asyncio.Protocol):
    """Sends requests and matches replies by id. When the other side hangs up, all waiting requests get `SandboxLost`.

    Attributes:
        label: owner of the sandbox, for messages.
        lost: reason why the sandbox is gone; empty while it lives.
        heard: called on every message of the sandbox.
        postmortem: called when the sandbox hung up or (True) fell silent, returns the fault of its own programs; empty:
            none could be proven.
    """

    def __init__(self, label: str) -> None:
        self.label = label
        self._waiting: dict[str, asyncio.Future[Response]] = {}
        self._inbox = bytearray()
        self._transport: asyncio.WriteTransport | None = None
        self._last_id = 0
        self.lost = ""
        self.heard: Callable[[], None] = lambda: None
        self.postmortem: Callable[[bool], Awaitable[str]] | None = None
        self._blame = ""
        self._expired = False
        self._inquiring: asyncio.Task[None] | None = None

    def expect(self, id: str) -> asyncio.Future[Response]:
        """Returns a future of the reply with this id."""
        future: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        if self.lost and not self._under_postmortem:
            future.set_exception(self.loss())
            future.exception()  # the future may never be awaited
        else:
            self._waiting[id] = future
        return future

    def fresh_id(self) -> str:
        """Returns an unused id."""
        self._last_id += 1
        return str(self._last_id)

    def send(self, fields: Mapping[str, Field], body: bytes = b"") -> None:
        """Sends a request without waiting for a reply."""
        self._write(encode(fields, body))

    def _write(self, frame: bytes) -> None:
        if self._transport is not None and not self.lost:
            self._transport.write(frame)

    async def request(
        self, op: str, fields: Mapping[str, Field], body: bytes = b"", timeout_s: float = 30.0, id: str | None = None
    ) -> Response:
        """Sends a request and waits for its reply.

        Args:
            id: of the request, if the caller must know it beforehand.

        Raises:
            OSError: the operation failed inside.
            SandboxLost: the sandbox is gone, or did not answer in `timeout_s` and a margin.
        """
        id = id or self.fresh_id()
        frame = encode({"op": op, "id": id, **fields}, body)
        future = self.expect(id)
        self._write(frame)
        return await self.wait(future, timeout_s)

    async def wait(self, future: asyncio.Future[Response], timeout_s: float) -> Response:
        """Waits for the reply, for at most `timeout_s` and a margin. A cancelled wait leaves the future unchanged."""
        try:
            async with Deadline(timeout_s + MARGIN_S):
                reply = await asyncio.shield(future)
        except TimeoutError:
            reply = await self._late(future, f"no answer within {timeout_s + MARGIN_S:g} s")
        if "errno" in reply.fields:
            raise OSError(int(reply.fields["errno"]), reply.fields["message"])
        return reply

    async def _late(self, future: asyncio.Future[Response], why: str) -> Response:
        """Returns the reply if it has arrived and only the event loop was late; else ends the sandbox."""
        for _ in range(2):  # the first polls for readable sockets, the second reads
            await asyncio.sleep(0)
        if not self.lost and not future.done():
            self._begin_postmortem(why, silent=True)
        if self._inquiring is not None:
            await asyncio.shield(self._inquiring)
        return await future

    def loss(self) -> SandboxLost:
        """Returns the error with the reason why the sandbox is gone."""
        kind = SandboxBroken if self._blame else SandboxExpired if self._expired else SandboxLost
        whose = f" of {self.label}" if self.label else ""
        return kind(f"the sandbox{whose} is gone: {self.lost}{f'; {self._blame}' if self._blame else ''}")

    def expire(self, why: str) -> None:
        """Hangs up because it is too old."""
        self._expired = self._expired or not self.lost
        self.end(why)

    def end(self, why: str) -> None:
        """Hangs up, which ends the sandbox."""
        self.lost = self.lost or why
        if self._transport is not None:
            self._transport.abort()
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(self.loss())
                future.exception()  # the waiter may be gone

    @property
    def _under_postmortem(self) -> bool:
        """True while the cause of the end is unknown. Requests that wait for a reply wait for that, too."""
        return self._inquiring is not None and not self._inquiring.done()

    def _begin_postmortem(self, why: str, *, silent: bool) -> None:
        """Ends it, once the cause is known."""
        self._inquiring = asyncio.get_running_loop().create_task(self._hold_postmortem(why, silent))
        self.lost = why

    async def _hold_postmortem(self, why: str, silent: bool) -> None:
        try:
            if self.postmortem is not None and not self._blame:
                async with Deadline(INQUEST_S):
                    self._blame = await self.postmortem(silent)
        except TimeoutError:  # unknown: counts as an infrastructure failure
            pass
        finally:
            self.end(why)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not checked by class: other event loops (uvloop, used by Ray if installed) have their own.
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        self._inbox += data
        while len(self._inbox) >= 8:
            head = int.from_bytes(self._inbox[:4], "big") + 8
            end = head + int.from_bytes(self._inbox[4:8], "big")
            if len(self._inbox) < end:
                break
            header, body = self._inbox[8:head].decode("utf-8", "replace"), bytes(self._inbox[head:end])
            del self._inbox[:end]
            fields = dict(field.partition("=")[::2] for field in header.split("\0"))
            self.heard()
            if fields.get("id") == "broken":
                self._blame = f"its toolbox failed: {fields['message']}"
            future = self._waiting.pop(fields.get("id", ""), None)
            if future is not None and not future.done():
                future.set_result(Response(fields, body))

    def connection_lost(self, error: Exception | None) -> None:
        if not self.lost:
            why = f"it hung up{_reason(error)}"
            self._begin_postmortem(why, silent=False)


def _reason(error: Exception | None) -> str:
    if error is None:
        return ""
    told = (
        os.strerror(error.errno) if isinstance(error, OSError) and error.errno else f"{type(error).__name__}: {error}"
    )
    return f" ({told})"


def finite(seconds: float) -> float:
    """Returns the timeout after checking that it is finite: no request waits for ever."""
    if not 0 < seconds < float("inf"):
        raise ValueError(f"a timeout must be finite and above zero, not {seconds!r}")
    return seconds
