"""Drives Chromium for many episodes: takes lines of JSON on stdin, answers each with a line on stdout.

    python driver.py '{"executable": "/usr/bin/chromium", "args": []}'

Needs Python 3.11, playwright and a Chromium; nothing of agentrl. `operations.py` says what it can do. The client,
`agentrl/tools/builtin/web/client.py`, describes the protocol. The driver ends when stdin does, or when its parent is
gone, and Chromium with it.
"""

import asyncio
import contextlib
import importlib.metadata
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from context import Context, Failed
from operations import OPERATIONS

LINE_LIMIT = 64 << 20  # bytes of a message
MAKING_S = 45.0  # for making a context: the first one waits for the processes of a browser that has just started
CONTEXT_S = 20.0  # for closing one, and for a look at whether the browser answers
GRACE_S = 5.0  # within which a page that exceeded its time is stopped or replaced


@dataclass
class Browser:
    """One process of Chromium, shared by contexts."""

    browser: Any
    started: float = field(default_factory=time.monotonic)
    served: int = 0
    contexts: set[str] = field(default_factory=set)

    def alive(self) -> bool:
        return bool(self.browser.is_connected())


class Driver:
    """The contexts by name, and the browsers that they are in."""

    def __init__(self, playwright: Any, settings: dict[str, Any], send: Callable[[dict[str, Any]], None]) -> None:
        self.playwright, self.settings, self.send = playwright, settings, send
        self.browsers: list[Browser] = []
        self.contexts: dict[str, Context] = {}
        self.launching = asyncio.Lock()
        self.made = 0

    async def answer(self, message: dict[str, Any]) -> None:
        """Carries out one request; says what came of it."""
        reply: dict[str, Any] = {"id": message.get("id")}
        try:
            reply["value"] = await self.carry_out(message)
        except Failed as failure:
            reply["error"], reply["message"] = failure.kind, failure.message
        except Exception as error:
            reply["error"], reply["message"] = "driver", f"{type(error).__name__}: {error}"
        if (context := self.contexts.get(message.get("context") or "")) is not None:
            reply["events"] = context.take_events()
        self.send(reply)

    async def carry_out(self, message: dict[str, Any]) -> Any:
        match message.get("op"):
            case "hello":
                return {"driver": os.getpid(), "playwright": importlib.metadata.version("playwright")}
            case "stats":
                return self.stats()
            case "context":
                async with limit(MAKING_S, "making a context"):
                    return await self.make(message)
            case "close":
                return await self.close(str(message.get("context")))
            case op:
                context = self.contexts.get(message.get("context") or "")
                if context is None:
                    raise Failed("browser", f"there is no context {message.get('context')!r}")
                return await self.in_context(context, str(op), message)

    async def in_context(self, context: Context, op: str, message: dict[str, Any]) -> Any:
        """One operation, or a batch of them, in its time."""
        steps = message.get("ops") if op == "batch" else [message]
        async with context.lock:
            values = []
            for step in steps or []:
                operation = OPERATIONS.get(str(step.get("op")))
                if operation is None:
                    raise Failed("refused", f"there is no operation {step.get('op')!r}")
                values.append(await self.guarded(context, operation, step, float(message.get("timeout_s", 30.0))))
        return values if op == "batch" else values[0]

    async def guarded(self, context: Context, operation: Any, step: dict[str, Any], seconds: float) -> Any:
        """An operation that ends, whatever the page does: one that takes too long has its scripts stopped."""
        try:
            async with asyncio.timeout(seconds) as deadline:
                return await operation(context, step)
        except TimeoutError:
            if not deadline.expired():
                raise
            async with limit(GRACE_S, "stopping a page"):
                await context.stop_page()
            raise Failed("timeout", f"took longer than {seconds:g} s") from None
        except Failed:
            raise
        except Exception as error:
            if not await context.alive():
                raise Failed("browser", f"the browser is gone: {error}") from None
            raise Failed(*context.told(error)) from None

    async def make(self, message: dict[str, Any]) -> dict[str, Any]:
        browser = await self.browser()
        self.made += 1
        name = f"c{self.made}"
        context = Context(name, message)
        try:
            await context.open(browser.browser)
        except Exception as error:
            await context.close()
            raise Failed("browser", f"no context could be made: {error}") from None
        browser.served += 1
        browser.contexts.add(name)
        self.contexts[name] = context
        return {"context": name, "browser": browser.browser.version}

    async def close(self, name: str) -> None:
        context = self.contexts.pop(name, None)
        if context is not None:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(CONTEXT_S):
                    await context.close()
        for each in self.browsers:
            each.contexts.discard(name)
        await self.retire()

    async def browser(self) -> Browser:
        """The one that takes new contexts; launched when there is none, or when it is old."""
        async with self.launching:
            await self.retire()
            if (found := next((each for each in self.browsers if self.fresh(each)), None)) is not None:
                return found
            try:
                launched = await self.playwright.chromium.launch(
                    executable_path=self.settings["executable"], headless=True, args=self.settings["args"],
                    timeout=30_000, handle_sigint=False,
                )  # fmt: skip
            except Exception as error:
                raise Failed("launch", f"Chromium does not start: {error}") from None
            self.browsers.append(Browser(launched))
            return self.browsers[-1]

    def fresh(self, browser: Browser) -> bool:
        settings = self.settings
        young = time.monotonic() - browser.started < settings.get("browser_s", 3600)
        return browser.alive() and young and browser.served < settings.get("browser_contexts", 1000)

    async def retire(self) -> None:
        """Closes browsers that are dead, or old and empty."""
        for each in [each for each in self.browsers if not each.alive() or not (each.contexts or self.fresh(each))]:
            self.browsers.remove(each)
            with contextlib.suppress(Exception):
                async with asyncio.timeout(CONTEXT_S):
                    await each.browser.close()

    def stats(self) -> dict[str, Any]:
        return {
            "contexts": len(self.contexts),
            "made": self.made,
            "browsers": [
                {"age_s": time.monotonic() - each.started, "served": each.served, "contexts": len(each.contexts),
                 "alive": each.alive(), "version": each.browser.version}
                for each in self.browsers
            ],
        }  # fmt: skip


@contextlib.asynccontextmanager
async def limit(seconds: float, what: str) -> Any:
    """A deadline of the driver's own work: if it passes, the browser is to blame."""
    try:
        async with asyncio.timeout(seconds) as deadline:
            yield
    except TimeoutError:
        if not deadline.expired():
            raise
        raise Failed("browser", f"the browser does not answer: {what} took longer than {seconds:g} s") from None


async def serve(settings: dict[str, Any], out: int) -> None:
    from playwright.async_api import async_playwright

    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader(limit=LINE_LIMIT)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, os.fdopen(out, "wb", 0))
    writer = asyncio.StreamWriter(transport, protocol, None, loop)
    running: set[asyncio.Task[None]] = set()
    async with async_playwright() as playwright:
        driver = Driver(
            playwright, settings, lambda reply: writer.write(json.dumps(reply, separators=(",", ":")).encode() + b"\n")
        )
        while line := await lines.readline():
            task = loop.create_task(driver.answer(json.loads(line)))
            running.add(task)
            task.add_done_callback(running.discard)


def end_with_parent() -> None:
    """Ends this process when its parent is gone, also if somebody else still holds our stdin open."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


def main() -> None:
    out = os.dup(1)
    os.dup2(2, 1)  # what libraries print is no reply
    end_with_parent()
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        asyncio.run(serve(json.loads(sys.argv[1]), out))
    os._exit(0)  # the end of our pipes ends Playwright's driver, and with it Chromium


if __name__ == "__main__":
    main()
