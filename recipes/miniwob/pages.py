"""Pages of MiniWoB++ in a browser that episodes share: a page that one gives back starts the next in place."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import shutil
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from agentrl.types.errors import InfraError, RecipeError

WIDTH, HEIGHT = 160, 210
"""The size of a page, in pixels."""

MILLIS = 1_000_000_000
"""Time until the page ends the episode by itself (its default, 10 s, is not enough for a model): eleven days."""

SCRIPT = (Path(__file__).parent / "page.js").read_text(encoding="utf-8")
PAINTED = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
"""A page that has just been loaded does not take the mouse before it is painted."""

FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--no-first-run",
]  # fmt: skip


def folder() -> Path:
    """Where the pages of the package lie. Only its HTML is used.

    Raises:
        RecipeError: the package is not installed.
    """
    spec = importlib.util.find_spec("miniwob")
    if spec is None or spec.origin is None:
        raise RecipeError("the pages of MiniWoB++ are not installed", remedy="pip install --no-deps miniwob==1.1.0")
    return Path(spec.origin).parent / "html" / "miniwob"


class Page:
    """One tab of 160 x 210 pixels in a context of its own."""

    def __init__(self, family: str, page: Any) -> None:
        self.family, self.tab, self.used = family, page, False

    async def start(self, seed: str, in_place: bool) -> None:
        """Begins an episode: in place, or after the page has been loaded again."""
        if not (self.used and in_place):
            await self.tab.goto((folder() / f"{self.family}.html").as_uri())
            await self.tab.bring_to_front()  # else it is laid out anew in the middle of its first action
            await self.tab.evaluate(SCRIPT)
            await self.tab.evaluate(PAINTED)
        await self.tab.mouse.move(0, 0)
        self.used = True
        if not await self.tab.evaluate("([seed, millis]) => agentrl.start(seed, millis)", [seed, MILLIS]):
            await self.tab.wait_for_function("WOB_TASK_READY")

    async def discard(self) -> None:
        """Closes it, also if its browser is gone."""
        with contextlib.suppress(Exception):
            await self.tab.context.close()


class Pages:
    """The browser of an event loop, and the pages that wait for their next episode, by family."""

    def __init__(self) -> None:
        self.idle: dict[str, list[Page]] = defaultdict(list)
        self.browser: Any = None
        self.opening = asyncio.Lock()

    async def take(self, family: str) -> Page:
        """A page of the family that no other episode has."""
        async with self.opening:
            if self.browser is None or not self.browser.is_connected():
                self.idle.clear()
                self.browser = await launch()
        if self.idle[family]:
            return self.idle[family].pop()
        context = await self.browser.new_context(
            viewport={"width": WIDTH, "height": HEIGHT}, timezone_id="UTC", locale="en-US"
        )
        page = await context.new_page()
        return Page(family, page)

    def give_back(self, page: Page) -> None:
        """The page waits for the next episode of its family."""
        self.idle[page.family].append(page)


async def launch() -> Any:
    """A browser, which ends with this process.

    Raises:
        RecipeError: Playwright or Chromium is not installed.
    """
    try:
        from playwright.async_api import async_playwright
    except ImportError:
        raise RecipeError("the browser needs Playwright", remedy="pip install 'agentrl[web]'") from None
    program = next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium"))), None)
    if program is None:
        raise RecipeError("there is no Chromium on the PATH", remedy="apt-get install chromium-headless-shell")
    driver = await async_playwright().start()
    return await driver.chromium.launch(executable_path=program, args=FLAGS)


@asynccontextmanager
async def broken_is_infra() -> AsyncIterator[None]:
    """What Playwright raises is a failure of the browser."""
    try:
        yield
    except (RecipeError, asyncio.CancelledError):
        raise
    except Exception as error:
        if not type(error).__module__.startswith("playwright"):
            raise
        raise InfraError(f"the browser failed: {error}") from error


_OF_LOOP: WeakKeyDictionary[asyncio.AbstractEventLoop, Pages] = WeakKeyDictionary()


def pages() -> Pages:
    """Those of the running event loop."""
    return _OF_LOOP.setdefault(asyncio.get_running_loop(), Pages())
