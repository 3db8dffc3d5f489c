"""Drives the viewer in real Chromium: a server, and a page that keeps what it complained about."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from agentrl.commands.view import helpers
from agentrl.view.web.library import RunLibrary
from agentrl.view.web.server import ViewServer

AXE = (Path(__file__).parent / "axe.min.js").read_text(encoding="utf-8")
"""axe-core 4.14.1 of npm (MPL-2.0), unchanged."""

LONG_MS = 240_000
"""For what is to succeed: the limit only ends a hang."""
PARTS = 12
"""Looks during `LONG_MS` whether a page has to be loaded again."""
CHANGED = "ERR_NETWORK_CHANGED"
"""Chromium gives up what it loads when an interface of the machine changes, as that of a container's network does."""


@contextmanager
def served(path: Path, cache: Path) -> Iterator[ViewServer]:
    library = RunLibrary(path, helpers(), cache=cache)
    server = ViewServer(library, port=0)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        library.close()
        thread.join()


class Screen:
    """A page of the viewer, and what went wrong on it.

    Args:
        refused: the status of requests that shall be refused: the browser's own line about them is not wrong.

    Attributes:
        wrong: errors of the console, exceptions, and requests that left the viewer.
    """

    def __init__(self, page: Any, url: str, refused: int = 0) -> None:
        self.page, self.base, self.wrong, self._refused = page, url.partition("?")[0], [], refused
        self._given_up = False
        page.set_default_timeout(LONG_MS)
        page.on("console", self._hear)
        page.on("pageerror", lambda error: self.wrong.append(str(error)))
        page.on("request", self._check)
        page.on("requestfailed", self._fail)
        page.goto(url)

    def _hear(self, said: Any) -> None:
        known = CHANGED in said.text or f"with a status of {self._refused} " in said.text
        if said.type in ("error", "warning") and not known:
            self.wrong.append(said.text)

    def _check(self, request: Any) -> None:
        parts = urlsplit(request.url)
        if parts.scheme not in ("data", "blob", "file") and parts.netloc != urlsplit(self.base).netloc:
            self.wrong.append(f"external request: {request.url}")

    def _fail(self, request: Any) -> None:
        self._given_up |= CHANGED in (request.failure or "")

    def _waits_for(self, element: Any) -> Screen:
        """Waits for an element, and loads a page again that Chromium gave up."""
        from playwright.sync_api import TimeoutError

        for part in range(PARTS):
            try:
                element.wait_for(timeout=LONG_MS / PARTS)
            except TimeoutError:
                if part == PARTS - 1:
                    raise
                if self._given_up:
                    self._given_up = False
                    self.page.reload()
            else:
                break
        return self

    def go(self, *place: str, query: str = "") -> Screen:
        self.page.goto(self.base + "#/" + "/".join(quote(part, safe="") for part in place) + query)
        return self

    def sees(self, text: str) -> Screen:
        """Waits for a text."""
        return self._waits_for(self.page.get_by_text(text).locator("visible=true").first)

    def holds(self, selector: str, text: str | None = None) -> Screen:
        """Waits for an element."""
        return self._waits_for(self.page.locator(selector, has_text=text).first)

    def keys(self, *keys: str) -> Screen:
        for key in keys:
            self.page.keyboard.press(key)
        return self

    def until(self, script: str) -> Screen:
        """Waits for a condition in the page."""
        self.page.wait_for_function(script)
        return self

    def is_clean(self) -> None:
        """Asserts that nothing went wrong, that it fits its window, and that axe finds nothing, in dark and light, 800
        and 1280 pixels wide."""
        self.page.evaluate(AXE)
        for scheme in ("dark", "light"):
            self.page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
            self.until(f"() => document.documentElement.dataset.theme === '{scheme}'")
            for width in (800, 1280):
                self.page.set_viewport_size({"width": width, "height": 800})
                # Charts follow the window a frame later.
                self.until(f"() => innerWidth === {width} && document.documentElement.scrollWidth <= innerWidth")
                assert not (found := self.page.evaluate(VIOLATIONS)), f"{scheme}, {width} pixels: {found}"
        assert not self.wrong, self.wrong


VIOLATIONS = """async () => (await axe.run(document, { resultTypes: ['violations'] })).violations
  .map((one) => [one.id, one.help, ...one.nodes.slice(0, 3).map(
    (node) => `${node.html.slice(0, 160)} ${node.failureSummary}`)])"""
