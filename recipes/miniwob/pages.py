"""Pages of MiniWoB++ in the browser driver, shared by episodes: a page that one gives back starts the next in place."""

from __future__ import annotations

import asyncio
import importlib.util
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from agentrl.tools.builtin.web.client import BrowserContext, PageFailure
from agentrl.tools.builtin.web.launching import open_context
from agentrl.types.errors import InfraError, RecipeError, ToolError

WIDTH, HEIGHT = 160, 210
"""The size of a page, in pixels."""

MILLIS = 1_000_000_000
"""Time until the page ends the episode by itself (its default, 10 s, is not enough for a model): eleven days."""

KEPT = 8
"""Pages that wait for their next episode. With more, the one that has waited longest loads another family."""

SCRIPT = (Path(__file__).parent / "page.js").read_text(encoding="utf-8")
PAINTED = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"

Step = tuple[str, dict[str, Any]]
"""An operation of the browser driver, and its fields."""


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
    """One tab of 160 x 210 pixels in a context of its own.

    Attributes:
        family: whose page is loaded; empty: none.
        sound: whether it can serve another episode.
    """

    def __init__(self, context: BrowserContext) -> None:
        self.context, self.family, self.sound = context, "", True

    async def start(self, family: str, seed: str, in_place: bool) -> Any:
        """Begins an episode, in place or after the page has been loaded: the state of the page."""
        steps: list[Step] = []
        if not (in_place and self.family == family):
            # Only a page in front that has drawn two frames is ready. On any other one, the first action makes the
            # browser lay it out again, and a click misses.
            steps += [
                ("goto", {"url": (folder() / f"{family}.html").as_uri()}),
                ("tabs", {"to": 0}),
                ("evaluate", {"script": SCRIPT}),
                ("evaluate", {"script": PAINTED}),
            ]
        steps += [
            ("mouse_move", {"x": 0, "y": 0}),
            ("evaluate", {"script": "([seed, millis]) => agentrl.start(seed, millis)", "arg": [seed, MILLIS]}),
        ]
        self.family = family
        return (await self.do(*steps))[-1]

    async def do(self, *steps: Step) -> list[Any]:
        """The values of operations of the browser driver, in one request.

        Raises:
            ToolError: an operation is asked for what does not exist, such as a key.
            InfraError: the page or the browser failed. The pages are trusted: the policy is not to blame.
        """
        try:
            return await self.context.batch(*steps)
        except PageFailure as failure:
            if failure.kind == "refused":
                raise ToolError(failure.message) from None
            self.sound = False
            raise InfraError(f"the page {self.family} failed: {failure}") from failure
        except BaseException:
            self.sound = False
            raise


class Pages:
    """The pages of an event loop that wait for their next episode, the one that has waited longest first."""

    def __init__(self) -> None:
        self.idle: list[Page] = []

    async def take(self, family: str) -> Page:
        """A page that no other episode has; one of the family, if one waits."""
        for page in self.idle:
            if page.family == family:
                self.idle.remove(page)
                return page
        if len(self.idle) >= KEPT:
            return self.idle.pop(0)
        return Page(await open_context(viewport=[WIDTH, HEIGHT], dialogs="accept"))

    async def give_back(self, page: Page) -> None:
        """A sound page waits for the next episode. After one that is not, all are closed: they share its browser."""
        if page.sound:
            self.idle.append(page)
            return
        await page.context.close()
        await self.close()

    async def close(self) -> None:
        """Closes the pages that wait."""
        idle, self.idle = self.idle, []
        for page in idle:
            await page.context.close()


_OF_LOOP: WeakKeyDictionary[asyncio.AbstractEventLoop, Pages] = WeakKeyDictionary()


def pages() -> Pages:
    """Those of the running event loop."""
    return _OF_LOOP.setdefault(asyncio.get_running_loop(), Pages())
