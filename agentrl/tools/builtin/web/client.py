"""Client of the browser driver (`tools/browser/driver.py`), which serves many episodes with one Chromium.

A request is `{"id", "op", "context", "timeout_s", ...fields}`; its answer is `{"id", "value" | ("error", "message"),
"events"}`, both in frames (`agentrl/sandbox/frames.py`). Operations of one context run in the order of sending, those
of different contexts concurrently. An operation that exceeds `timeout_s` ends with `timeout`, after hanging scripts
were stopped or their page was closed.

| op | fields (`?`: may be left out) | value |
|---|---|---|
| `context` | `viewport?` [w, h], `scale?`, `allow?` hosts, `proxied?`, `dialogs?`, `tabs?`, `locale?`, `timezone?` | |
| `close` | | |
| `goto` | `url`, `wait?` load, domcontentloaded, commit; `load_s?` | `url`, `status` |
| `back` | `load_s?` | `moved`, `url` |
| `settle` | `seconds?` | `over`: whether requests and loading ended |
| `where` | | `url`, `title`, `scroll`, `viewport`, `size` |
| `tabs` | `to?`, `close?` (numbers) | `tabs`, `current` |
| `evaluate` | `script`, `arg?` | of the expression or function, JSON |
| `tree` | | as `where`, and `lines`: the accessibility tree |
| `elements` | | list of `id`, `role`, `name`, `state`, `box` [left, top, w, h], `visible` |
| `text` | `element?` | as `where`, and `text` |
| `screenshot` | `format?` png, jpeg, webp; `quality?`, `clip?` [x, y, w, h], `fast?` | base64 |
| `click` | `element`, `button?`, `count?` | `point` [x, y] of the element before, null if it is not in view |
| `fill` | `element`, `text`, `add?`, `submit?` | `point` |
| `choose` | `element`, `options` | `point` |
| `scroll_to` | `element` | |
| `scroll` | `dx?`, `dy?` | `moved`, as `where` |
| `mouse_move` | `x`, `y`, `steps?` | |
| `mouse_click` | `x`, `y`, `button?`, `count?`, `hold?` keys | |
| `mouse_down`, `mouse_up` | `button?` | |
| `mouse_drag` | `path` [[x, y], ...], `steps?` | |
| `wheel` | `dx?`, `dy?`, `x?`, `y?` | |
| `key` | `keys`: one or a list | |
| `key_down`, `key_up` | `key` | |
| `write` | `text`, `keys?` (key by key) | |
| `batch` | `ops`: a list of operations with their fields | their values |
| `stats` | (of the driver) | `contexts`, `browsers` |

Coordinates are CSS pixels of the viewport; ids come from `tree` and `elements`. Events: `tab`, `tab_refused`,
`dialog`, `download`, `filechooser`, `blocked` (a host that is not allowed), `crash`, `hang`, `still_loading`, `more`.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from agentrl.sandbox.frames import Frames, frame
from agentrl.types.clocks.deadline import Deadline
from agentrl.types.errors import InfraError, ToolError, ToolServerEnded

LARGEST = 64 << 20
"""Bytes of an answer: the screenshot of a large page has some millions."""
GRACE_S = 20.0
"""Seconds beyond the timeout of an operation after which a silent driver counts as dead."""


class BrowserLost(InfraError):
    """The driver or Chromium died or does not start. The next episode gets a new one."""


class BrowserEnded(BrowserLost, ToolServerEnded):
    """The same, of a browser in the sandbox of an episode, whose programs may have done it."""


class PageFailure(ToolError):
    """An operation failed on the page.

    Attributes:
        kind: `refused`: the request is invalid; `page`: the page or its server fails; `timeout`; `crashed`.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind, self.message = kind, message


class Driver:
    """Running driver.

    Args:
        send: writes bytes to it.
        kill: ends it.
        said: what it last wrote on its stderr.
        inside: whether it runs in the sandbox of the episode.

    Attributes:
        contexts: open contexts.
    """

    def __init__(
        self,
        send: Callable[[bytes], Awaitable[None]],
        kill: Callable[[], None],
        said: Callable[[], str],
        *,
        inside: bool = False,
    ) -> None:
        self._send, self._kill, self._said, self._inside = send, kill, said, inside
        self._frames = Frames(LARGEST)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._numbers = itertools.count(1)
        self.contexts: set[BrowserContext] = set()
        self.alive = True

    async def request(self, op: str, *, timeout_s: float = 30.0, **fields: Any) -> dict[str, Any]:
        """Sends a request and returns the answer.

        Raises:
            BrowserLost: the driver died or does not answer.
        """
        if not self.alive:
            raise self._lost()
        number = next(self._numbers)
        answer: asyncio.Future[dict[str, Any]]
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        message = {"id": number, "op": op, "timeout_s": timeout_s, **fields}
        try:
            await self._send(frame(message))
            async with Deadline(timeout_s + GRACE_S):
                return await answer
        except TimeoutError:
            lost = self.lost(f"the browser driver does not answer: {op} took longer than {timeout_s:g} s")
            self.end()
            raise lost from None
        except OSError:  # it was killed, and the end of its output has not been read yet
            self.end()
            raise self._lost() from None
        finally:
            self._waiting.pop(number, None)

    def received(self, data: bytes) -> None:
        """Handles a chunk of the driver's output. Raises ValueError if a reply in it is malformed."""
        for reply, _ in self._frames.feed(data):
            self._answered(reply)

    def _answered(self, reply: dict[str, Any]) -> None:
        number = reply.get("id")
        if not isinstance(number, int):
            raise ValueError(f"an answer to {number!r:.100}")
        if (waiting := self._waiting.get(number)) is not None and not waiting.done():
            waiting.set_result(reply)

    def end(self) -> None:
        """Kills the driver; pending requests fail."""
        self.ended()
        self._kill()

    def ended(self) -> None:
        """Marks the driver as dead; pending requests fail."""
        self.alive = False
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(self._lost())
                waiting.exception()  # marks it as retrieved: the waiter may have been cancelled

    def _lost(self) -> BrowserLost:
        said = self._said().strip().splitlines()
        return self.lost("the browser driver is gone" + (f"; it said: {said[-1][:300]}" if said else ""))

    def lost(self, why: str) -> BrowserLost:
        """The failure of the episodes that have a context here."""
        return (BrowserEnded if self._inside else BrowserLost)(why)

    def value(self, reply: dict[str, Any]) -> Any:
        """The value of an answer.

        Raises:
            PageFailure, BrowserLost: it has none.
        """
        if (kind := reply.get("error")) is None:
            return reply.get("value")
        if kind in ("launch", "browser", "driver"):
            raise self.lost(reply["message"])
        raise PageFailure(kind, reply["message"])

    async def context(self, **options: Any) -> BrowserContext:
        """Opens a context. Options: the fields of `context`.

        Raises:
            BrowserLost: the browser does not start or died.
        """
        context = BrowserContext(self, "")
        self.contexts.add(context)
        try:
            reply = await self.request("context", timeout_s=60.0, **options)
            if reply.get("error") in ("launch", "browser"):
                self.end()  # the next one is started by a new driver
            value = self.value(reply)
        except BaseException:
            self.contexts.discard(context)
            raise
        context.name = value["context"]
        return context


class BrowserContext:
    """Browser context of one episode. Made by `launching.open_context`; `async with` closes it.

    Attributes:
        events: events since the last `take_events`, oldest first.
    """

    def __init__(self, driver: Driver, name: str) -> None:
        self.driver, self.name = driver, name
        self.events: list[dict[str, Any]] = []

    async def do(self, op: str, *, timeout_s: float = 30.0, **fields: Any) -> Any:
        """Runs an operation and returns its value.

        Raises:
            PageFailure: the operation failed on the page.
            BrowserLost: the browser died.
        """
        reply = await self.driver.request(op, timeout_s=timeout_s, context=self.name, **fields)
        self.events += reply.get("events", ())
        return self.driver.value(reply)

    async def batch(self, *steps: tuple[str, Mapping[str, Any]], timeout_s: float = 30.0) -> list[Any]:
        """Runs several operations in one request and returns their values. Raises the first failure.

        Args:
            timeout_s: of each operation.
        """
        ops = [{"op": op, **fields} for op, fields in steps]
        values: list[Any] = await self.do("batch", timeout_s=timeout_s, ops=ops)
        return values

    async def evaluate(self, script: str, arg: Any = None) -> Any:
        """Evaluates a JavaScript expression or function and returns its value."""
        return await self.do("evaluate", script=script, arg=arg)

    async def screenshot(self, **fields: Any) -> bytes:
        """Takes a screenshot and returns the file. Fields: those of `screenshot`."""
        return base64.b64decode(await self.do("screenshot", **fields))

    def take_events(self) -> Sequence[dict[str, Any]]:
        """Returns the events since the last call."""
        events, self.events = self.events, []
        return events

    async def close(self) -> None:
        """Closes the context, even if its browser died."""
        if self not in self.driver.contexts:
            return
        try:
            await self.driver.request("close", context=self.name)
        except BrowserLost:
            pass
        finally:
            self.driver.contexts.discard(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
