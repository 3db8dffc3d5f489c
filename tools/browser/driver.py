"""Driver of Chromium for many episodes: requests on stdin, answers on stdout, in frames (`../shared/frames.py`).

    python driver.py '{"executable": "/usr/bin/chromium", "args": []}'

Needs Python 3.11, playwright and Chromium; nothing of agentrl. `operations.py` defines the operations. The client,
`agentrl/tools/builtin/web/client.py`, describes the protocol. The driver and Chromium end when stdin is closed. On the
driver's machine they are guarded (`tools/shared/lifeline.py`), and so end when their starter does, in any way.
"""

import asyncio
import contextlib
import importlib.metadata
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

sys.path.append(str(Path(__file__).resolve().parents[1] / "shared"))

from context import Context, Failed
from frames import HEAD, claimed_stdout, frame
from operations import OPERATIONS

MAKING_S = 45.0  # for opening a context: the first one waits for the processes of a new browser
CONTEXT_S = 20.0  # for closing a context or a browser
GRACE_S = 5.0  # for stopping or replacing a page after a timeout


@dataclass
class Browser:
    """Chromium process, shared by contexts."""

    browser: Any
    started: float = field(default_factory=time.monotonic)
    served: int = 0
    contexts: set[str] = field(default_factory=set)

    def alive(self) -> bool:
        return bool(self.browser.is_connected())


class Driver:
    """Contexts by name, and their browsers."""

    def __init__(self, playwright: Any, settings: dict[str, Any], send: Callable[[dict[str, Any]], None]) -> None:
        self.playwright, self.settings, self.send = playwright, settings, send
        self.browsers: list[Browser] = []
        self.contexts: dict[str, Context] = {}
        self.launching = asyncio.Lock()
        self.made = 0

    async def answer(self, message: dict[str, Any]) -> None:
        """Runs one request and sends the reply."""
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
        """Runs one operation, or a batch, each with the timeout."""
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
        """Runs an operation with a timeout, after which the page's scripts are stopped."""
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
        """Returns the browser for new contexts; launches one if none is alive and fresh."""
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
        """Closes dead browsers, and old ones without contexts."""
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
    """Timeout of the driver's own work; exceeding it is a browser failure."""
    try:
        async with asyncio.timeout(seconds) as deadline:
            yield
    except TimeoutError:
        if not deadline.expired():
            raise
        raise Failed("browser", f"the browser does not answer: {what} took longer than {seconds:g} s") from None


async def serve(settings: dict[str, Any], out: BinaryIO) -> None:
    from playwright.async_api import async_playwright

    loop = asyncio.get_running_loop()
    stdin = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdin), sys.stdin)
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, out)
    writer = asyncio.StreamWriter(transport, protocol, None, loop)
    running: set[asyncio.Task[None]] = set()
    async with async_playwright() as playwright:
        driver = Driver(playwright, settings, lambda reply: writer.write(frame(reply)))
        with contextlib.suppress(asyncio.IncompleteReadError):  # stdin is closed
            while True:
                task = loop.create_task(driver.answer(await request(stdin)))
                running.add(task)
                task.add_done_callback(running.discard)


async def request(stdin: asyncio.StreamReader) -> dict[str, Any]:
    """Reads the next request, which has no body."""
    length, size = HEAD.unpack(await stdin.readexactly(HEAD.size))
    message: dict[str, Any] = json.loads((await stdin.readexactly(length + size))[:length])
    return message


def main() -> None:
    out = claimed_stdout()
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        asyncio.run(serve(json.loads(sys.argv[1]), out))
    os._exit(0)  # closing our pipes ends Playwright's driver and Chromium


if __name__ == "__main__":
    main()
