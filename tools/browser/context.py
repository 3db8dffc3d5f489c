"""Browser context of one episode: tabs, events, and watchdogs against hanging or crashing pages."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

from gate import Gate, proxy

PAGE_JS = Path(__file__).with_name("page.js").read_text()
EVENTS = 20  # reported at once; further ones are only counted
ANSWER_S = 1.0  # timeout after which a page counts as hung
WAITED_FOR = ("document", "xhr", "fetch")  # kinds of requests that the result of an action may depend on


class Failed(Exception):
    """Error reply of an operation.

    Args:
        kind: `refused`: the request is invalid; `page`: the page or its server failed; `timeout`; `crashed`: the page's
            process died; `launch`, `browser`: Chromium does not start, or died.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind, self.message = kind, message


class Context:
    """Isolated browser context of an episode.

    Args:
        options: `viewport` [width, height] in CSS pixels; `scale` device pixels per CSS pixel; `allow` hosts (None:
            all); `proxied`: other machines are reached through the environment's proxy; `dialogs` "accept" or "dismiss"
            for confirm and prompt; `tabs` maximum; `locale`, `timezone`.
    """

    def __init__(self, name: str, options: dict[str, Any]) -> None:
        self.name, self.options = name, options
        self.lock = asyncio.Lock()
        self.pages: list[Any] = []
        self.page: Any = None
        self.gate: Gate | None = None
        self.context: Any = None
        self.events: list[dict[str, Any]] = []
        self.untold = 0
        self.requests: dict[Any, set[Any]] = {}
        self.quiet = asyncio.Event()
        self.sessions: dict[Any, Any] = {}
        self.crashed: set[Any] = set()
        self.tasks: set[asyncio.Task[Any]] = set()

    async def open(self, browser: Any) -> None:
        options = self.options
        width, height = options.get("viewport") or (1024, 768)
        settings: dict[str, Any] = {
            "viewport": {"width": width, "height": height},
            "device_scale_factor": options.get("scale") or 1,
            "accept_downloads": False,
            "service_workers": "block",
            "locale": options.get("locale") or "en-US",
            "timezone_id": options.get("timezone") or "UTC",
        }
        through = proxy() if options.get("proxied") else None
        if options.get("allow") is not None or through is not None:
            allow = ["*"] if options.get("allow") is None else options["allow"]
            self.gate = Gate(allow, lambda host: self.tell("blocked", host=host), through)
            settings["proxy"] = {"server": f"socks5://127.0.0.1:{await self.gate.open()}", "bypass": "<-loopback>"}
        self.browser = browser
        self.context = await browser.new_context(**settings)
        self.context.on("page", self.on_page)
        self.context.on("request", self.on_request)
        self.context.on("requestfinished", self.on_request_end)
        self.context.on("requestfailed", self.on_request_end)
        self.page = await self.context.new_page()

    async def close(self) -> None:
        if self.gate is not None:
            await self.gate.close()
        for task in list(self.tasks):
            task.cancel()
        if self.context is not None:
            await self.context.close()

    async def alive(self) -> bool:
        """Returns True if the browser is connected and answers."""
        try:
            async with asyncio.timeout(ANSWER_S):
                await self.context.cookies("http://localhost")
        except TimeoutError:
            return bool(self.browser.is_connected())
        except Exception:
            return False
        return bool(self.browser.is_connected())

    # Events

    def tell(self, kind: str, **what: Any) -> None:
        """Stores an event for the next reply."""
        event = {"event": kind, **what}
        if event in self.events:
            return
        if len(self.events) < EVENTS:
            self.events.append(event)
        else:
            self.untold += 1

    def take_events(self) -> list[dict[str, Any]]:
        events, self.events = self.events, []
        if self.untold:
            events.append({"event": "more", "count": self.untold})
            self.untold = 0
        return events

    def told(self, error: Exception) -> tuple[str, str]:
        """Returns kind and message of a Playwright error."""
        text = str(error).partition("\nCall log:")[0].partition("\nBrowser logs:")[0].strip()
        text = text.removeprefix("Page.").removeprefix("Locator.").removeprefix("ElementHandle.").removeprefix("Mouse.")
        if self.page in self.crashed or "crashed" in text.lower():
            return "crashed", "the page crashed"
        return "page", text[:500]

    # Tabs

    def on_page(self, page: Any) -> None:
        if len(self.pages) >= self.options.get("tabs", 8):
            self.tell("tab_refused")
            self.spawn(page.close())
            return
        if self.pages:
            self.tell("tab", index=len(self.pages), url=page.url)
        self.pages.append(page)
        self.page = page
        self.requests[page] = set()
        page.on("close", self.on_close)
        page.on("crash", self.on_crash)
        page.on("dialog", self.on_dialog)
        page.on("download", lambda download: self.tell("download", file=download.suggested_filename, url=download.url))
        page.on("filechooser", lambda _: self.tell("filechooser"))

    def on_close(self, page: Any) -> None:
        if page in self.pages:
            self.pages.remove(page)
        for table in (self.requests, self.sessions):
            table.pop(page, None)
        self.crashed.discard(page)
        if self.page is page and self.pages:
            self.page = self.pages[-1]

    def on_crash(self, page: Any) -> None:
        self.crashed.add(page)
        self.tell("crash", url=page.url)

    def on_dialog(self, dialog: Any) -> None:
        accept = dialog.type in ("alert", "beforeunload") or self.options.get("dialogs") == "accept"
        self.tell("dialog", type=dialog.type, text=dialog.message[:500], accepted=accept)
        self.spawn(dialog.accept() if accept else dialog.dismiss())

    def spawn(self, work: Any) -> None:
        async def run() -> None:
            with contextlib.suppress(Exception):
                await work

        task = asyncio.get_running_loop().create_task(run())
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def current(self) -> Any:
        """Returns the current tab. A closed or crashed one is replaced by another or an empty one."""
        page = self.page
        if page in self.crashed:
            self.crashed.discard(page)
            await self.replace(page)
        elif page.is_closed():
            self.page = self.pages[-1] if self.pages else await self.context.new_page()
        return self.page

    async def replace(self, page: Any) -> None:
        place = self.pages.index(page) if page in self.pages else len(self.pages)
        if page in self.pages:
            self.pages.remove(page)  # so that the new one does not exceed the number of tabs
        with contextlib.suppress(Exception):
            async with asyncio.timeout(ANSWER_S):
                await page.close()
        fresh = await self.context.new_page()
        self.events = [each for each in self.events if each["event"] != "tab" or each.get("index") != place]
        if fresh in self.pages:
            self.pages.remove(fresh)
        self.pages.insert(place, fresh)
        self.page = fresh

    async def session(self, page: Any) -> Any:
        """Returns the DevTools protocol session of a tab."""
        if page not in self.sessions:
            self.sessions[page] = await self.context.new_cdp_session(page)
        return self.sessions[page]

    # Waiting

    def on_request(self, request: Any) -> None:
        if request.resource_type in WAITED_FOR and (held := self.of_page(request)) is not None:
            held.add(request)

    def on_request_end(self, request: Any) -> None:
        if (held := self.of_page(request)) is not None:
            held.discard(request)
            if not held:
                self.quiet.set()

    def of_page(self, request: Any) -> set[Any] | None:
        with contextlib.suppress(Exception):  # a request without a frame
            return self.requests.get(request.frame.page)
        return None

    async def settle(self, seconds: float) -> bool:
        """Waits for the effects of an action: its tasks, its requests, the loading of a new page.

        Returns:
            True if all finished in time; else loading is stopped.
        """
        page = await self.current()
        try:
            async with asyncio.timeout(seconds) as deadline:
                for _ in range(100):
                    await self.tick(page)
                    if not self.requests.get(page):
                        with contextlib.suppress(Exception):
                            if await page.evaluate("document.readyState") == "complete" and not self.requests.get(page):
                                return True
                        if not page.is_closed() and page not in self.crashed:
                            await page.wait_for_load_state("load")
                        else:
                            return True
                    while self.requests.get(page):
                        self.quiet.clear()
                        await self.quiet.wait()
        except TimeoutError:
            if not deadline.expired():
                raise
        await self.stop_loading(page)
        return False

    async def tick(self, page: Any) -> None:
        """Lets the page run its pending tasks, then the browser its part, because a click on a link starts a request
        only there. Fails silently during navigation."""
        with contextlib.suppress(Exception):
            await page.evaluate("new Promise(done => setTimeout(() => setTimeout(done)))")
            await (await self.session(page)).send("Page.getNavigationHistory")

    async def stop_loading(self, page: Any) -> None:
        with contextlib.suppress(Exception):
            async with asyncio.timeout(ANSWER_S):
                await (await self.session(page)).send("Page.stopLoading")
        self.requests.get(page, set()).clear()
        self.tell("still_loading", url=page.url)

    async def stop_page(self) -> None:
        """Recovers after a timeout: stops hanging scripts; replaces a page that still does not answer."""
        page = self.page
        if page.is_closed() or page in self.crashed:
            return
        with contextlib.suppress(Exception):
            async with asyncio.timeout(ANSWER_S):
                await (await self.session(page)).send("Page.stopLoading")
        if await self.answers(page):
            return
        with contextlib.suppress(Exception):
            async with asyncio.timeout(ANSWER_S):
                await (await self.session(page)).send("Runtime.terminateExecution")
        if await self.answers(page):
            self.tell("hang", url=page.url, page="its script was stopped")
            return
        self.tell("hang", url=page.url, page="it was closed")
        await self.replace(page)

    async def answers(self, page: Any) -> bool:
        try:
            async with asyncio.timeout(ANSWER_S):
                await page.evaluate("1")
                return True
        except Exception:
            return bool(page.is_closed())
