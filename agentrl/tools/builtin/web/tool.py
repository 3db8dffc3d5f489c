"""The `web` tool: pages in Chromium, as an accessibility tree or readable text, and actions on their elements."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urljoin, urlsplit

from agentrl.tools.base import Tool, ToolResult, name_of, own, own_methods, tool
from agentrl.tools.builtin.web.client import BrowserContext, BrowserLost, PageFailure
from agentrl.tools.builtin.web.inside import InsideDriver
from agentrl.tools.builtin.web.launching import Launch, open_context
from agentrl.tools.builtin.web.page import BrowserPage, told
from agentrl.tools.words import Word
from agentrl.types.errors import RecipeError, TaskError, ToolError, nearest
from agentrl.types.task import Task

if TYPE_CHECKING:
    from agentrl.types.sandbox import Sandbox

MARGIN_S = 15.0
"""Seconds for an action, in addition to loading and settling."""


class Web(Tool):
    """Browser of the episode, with its own pages and cookies.

    Args:
        url: first page; `url` in a task's data overrides it. None: an empty page.
        allow: hosts that the browser may reach: `host` or `*.domain` (ports 80 and 443), `host:port`; `*`: all.
            None: only the host of the first page. Other requests fail with a note to the model.
        viewport: width and height in CSS pixels.
        max_chars: maximum characters of a page per observation; `scroll` shows the next ones.
        observation: `tree`: accessibility tree with element ids; `text`: readable text.
        screenshots: adds a screenshot to each shown page.
        load_s: timeout after which the loading of a page is stopped.
        settle_s: maximum wait for the requests of an action.
        dialogs: answer to `confirm` and `prompt`: `accept` or `dismiss`.
        max_tabs: maximum number of open tabs.
        actions: names of the offered functions; None: all.
        where: `host`: on this machine, for trusted pages, in one Chromium for all episodes; `sandbox`: in the episode's
            sandbox, in its own Chromium with the network of the sandbox.
        chromium: path of the browser. None: chromium-headless-shell or another installed Chromium; in a sandbox
            /usr/bin/chromium.
        flags: additional command line flags of the browser.
    """

    ends_replies = True
    forkable = False

    def __init__(
        self,
        url: str | None = None,
        allow: Sequence[str] | None = None,
        viewport: tuple[int, int] = (1024, 768),
        max_chars: int = 8000,
        observation: Literal["tree", "text"] = "tree",
        screenshots: bool = False,
        load_s: float = 15.0,
        settle_s: float = 5.0,
        dialogs: Literal["accept", "dismiss"] = "dismiss",
        max_tabs: int = 8,
        actions: Sequence[str] | None = None,
        where: Literal["host", "sandbox"] = "host",
        chromium: str | None = None,
        flags: Sequence[str] = (),
    ) -> None:
        for name, value in (
            ("max_chars", max_chars),
            ("load_s", load_s),
            ("settle_s", settle_s),
            ("max_tabs", max_tabs),
        ):
            if value <= 0:
                raise RecipeError(f"web: {name} must be above 0, found {value}")
        if len(viewport) != 2 or min(viewport) < 1 or max(viewport) > 10_000:
            raise RecipeError(f"web: viewport must be two numbers from 1 to 10000, found {list(viewport)}")
        if observation not in ("tree", "text") or dialogs not in ("accept", "dismiss"):
            raise RecipeError(
                f"web: observation {observation!r}, dialogs {dialogs!r}",
                remedy="observation is tree or text, dialogs is accept or dismiss",
            )
        self.offers = actions
        known = [name_of(each) for each in own_methods(Web.__new__(Web))]
        if unknown := next((name for name in actions or () if name not in known), None):
            raise RecipeError(f"web: there is no action {unknown!r}", place="actions", remedy=nearest(unknown, known))
        self.launch = Launch(chromium, tuple(flags))
        if where not in ("host", "sandbox"):
            raise RecipeError(f"web: where is host or sandbox, found {where!r}", place="where")
        self.needs_sandbox = where == "sandbox"
        if not self.needs_sandbox:
            self.launch.settings()  # so that a recipe check reports a missing browser
        self._inside: InsideDriver | None = None
        self.url, self.allow, self.viewport, self.max_chars = url, allow, viewport, max_chars
        self.observation, self.screenshots = observation, screenshots
        self.load_s, self.settle_s, self.dialogs, self.max_tabs = load_s, settle_s, dialogs, max_tabs
        self.action_s = load_s + settle_s + MARGIN_S
        self.timeout_s = 3 * self.action_s
        self._context: BrowserContext | None = None
        self.page = BrowserPage("about:blank", "", [])
        self._pictured = False  # the model saw an image of the current page
        self._site = ""  # last address other than an error page of the browser

    async def open(self, task: Task, sandbox: Sandbox | None) -> None:
        """Opens a context and the first page."""
        url = task.data.get("url", self.url)
        first = urlsplit(url or "")
        if url and (first.scheme not in ("http", "https") or not first.hostname):
            raise TaskError(f"its page is {url!r}", place=f"task {task.id!r}", remedy="give http://... or https://...")
        allow = self.allow
        if allow is None:
            allow = [first.netloc.rpartition("@")[2]] if url else []
        options = {
            "viewport": list(self.viewport),
            "allow": None if "*" in allow else list(allow),
            "dialogs": self.dialogs,
            "tabs": self.max_tabs,
            "proxied": self.needs_sandbox,
        }
        if self.needs_sandbox:
            self._inside = await InsideDriver.start(own(sandbox), self.launch)
            self._context = await self._inside.context(**options)
        else:
            self._context = await open_context(self.launch, **options)
        if url:
            try:
                await self._do("goto", url=url, load_s=self.load_s)
            except PageFailure as failure:
                raise BrowserLost(f"the first page, {url}, cannot be opened: {failure.message}") from None
            await self._look()

    async def close(self) -> None:
        """Closes the context."""
        if self._inside is not None:
            await self._inside.close()
        elif self._context is not None:
            await self._context.close()

    @tool.named("open")
    async def visit(self, url: Word) -> ToolResult:
        """Open a page.

        Args:
            url: Its address; one without a host is taken relative to the current page.
        """
        address = urljoin(self._site, url.strip())
        if urlsplit(address).scheme not in ("http", "https"):
            raise ToolError(f"{url!r} is no address of a page; give http://... or a path of this site")
        opened = await self._do("goto", url=address, load_s=self.load_s)
        note = f"the server answered with status {opened['status']}" if (opened["status"] or 200) >= 400 else ""
        return await self._shown(note)

    @tool
    async def click(self, id: int) -> ToolResult:
        """Click on an element.

        Args:
            id: The number in brackets before it.
        """
        return await self._act("click", element=id)

    @tool
    async def type(self, id: int, text: str, submit: bool = False) -> ToolResult:
        """Replace what is in a text field.

        Args:
            id: The number in brackets before it.
            text: What is to be in it.
            submit: Press Enter afterwards.
        """
        return await self._act("fill", element=id, text=text, submit=submit)

    @tool
    async def select(self, id: int, option: str) -> ToolResult:
        """Choose an option of a list.

        Args:
            id: The number in brackets before the list.
            option: The option's text.
        """
        return await self._act("choose", element=id, options=[option])

    @tool
    async def press(self, key: str) -> ToolResult:
        """Press a key.

        Args:
            key: For example Enter, Escape, Tab, ArrowDown, Control+a.
        """
        return await self._act("key", keys=[key])

    @tool
    async def scroll(self, direction: Literal["down", "up"] = "down") -> ToolResult:
        """Scroll, and show the part of the page that was cut."""
        step = 0.8 * self.viewport[1] * (1 if direction == "down" else -1)
        first = self.page.first
        moved = (await self._do("scroll", dy=step))["moved"]
        await self._do("settle", seconds=self.settle_s)
        await self._look(first)
        moved = self.page.move(1 if direction == "down" else -1, self.max_chars) or moved
        return await self._result("" if moved else f"there is nothing further {direction}")

    @tool
    async def back(self) -> ToolResult:
        """Go back to the page before this one."""
        if not (await self._do("back", load_s=self.load_s))["moved"]:
            raise ToolError("there is no page before this one")
        return await self._shown()

    @tool
    async def tabs(self, show: int | None = None, close: int | None = None) -> ToolResult:
        """List the open tabs.

        Args:
            show: Number of a tab to show.
            close: Number of a tab to close.
        """
        found = await self._do("tabs", to=show, close=close)
        listed = [
            f"tab {number}{' (shown)' if number == found['current'] else ''}: {each['title']} {each['url']}"
            for number, each in enumerate(found["tabs"])
        ]
        if show is None and close is None:
            return ToolResult("\n".join([*told(self._events()), *listed]))
        await self._look()
        return await self._result("\n".join(listed))

    @tool
    async def find(self, text: str, hit: int = 1) -> str:
        """Find the lines of the page that contain a text, and show the page from one of them on.

        Args:
            text: What to look for; upper and lower case are the same.
            hit: Number of the line from which on to list them and to show the page.
        """
        await self._look(self.page.first)
        lines = self.page.lines
        hits = [number for number, line in enumerate(lines) if text.lower() in line.lower()]
        if not text.strip() or not hits:
            raise ToolError(f"{text!r} is not on this page")
        if not 1 <= hit <= len(hits):
            raise ToolError(f"{text!r} is in {len(hits)} lines of this page; there is no hit {hit}")
        self.page.first = hits[hit - 1]
        numbers = range(hit, min(hit + _HITS, len(hits) + 1))
        listed = [f"{number}. {lines[hits[number - 1]].strip()[:500]}" for number in numbers]
        more = [f"[... {len(hits) - numbers[-1]} more: hit={numbers[-1] + 1}]"] if numbers[-1] < len(hits) else []
        return "\n".join([f"{len(hits)} of {len(lines)} lines:", *listed, *more, self.page.shown(self.max_chars)])

    @tool
    async def extract(self, id: int | None = None, start: int = 0) -> str:
        """Read the page as text.

        Args:
            id: The number in brackets before an element, to read only it.
            start: Characters to leave out at the beginning.
        """
        text = (await self._do("text", element=id))["text"]
        part = text[max(start, 0) :][: self.max_chars]
        left = len(text) - max(start, 0) - len(part)
        return (
            f"{part}\n[... {left} more characters, from start={max(start, 0) + len(part)}]"
            if left > 0
            else part or "[no text]"
        )

    @tool
    async def screenshot(self) -> ToolResult:
        """Look at the page as an image."""
        return ToolResult("\n".join(told(self._events())), images=[await self._picture()])

    def state_key(self) -> str:
        """Hash of the page's address and tree."""
        return self.page.key()

    async def _act(self, op: str, **fields: Any) -> ToolResult:
        """Performs an action and returns the settled page. If nothing changed, later calls of the reply still run."""
        before, pictured = self.page.key(), self._pictured
        try:
            at = await self._do(op, **fields)
        except PageFailure as failure:
            failure.ends_reply = failure.kind != "refused"
            raise
        await self._do("settle", seconds=self.settle_s)
        await self._look(self.page.first)
        events = self._events()
        changed = self.page.key() != before or any(each["event"] not in ("blocked", "download") for each in events)
        points = [at["point"]] if pictured and at and at["point"] else []
        return await self._result("", events, ends=changed, points=points)

    async def _shown(self, note: str = "") -> ToolResult:
        await self._do("settle", seconds=self.settle_s)
        await self._look()
        return await self._result(note)

    async def _look(self, first: int = 0) -> None:
        """Reads the page. `first`: first line to show, if it is still the same page."""
        found = await self._do(self.observation)
        self._pictured = False
        lines = found["lines"] if self.observation == "tree" else found["text"].splitlines()
        if found["url"].startswith("http"):
            self._site = found["url"]
        same = found["url"] == self.page.url and first < len(lines)
        self.page = BrowserPage(found["url"], found["title"], lines, first if same else 0)

    async def _result(
        self,
        note: str = "",
        events: Sequence[dict[str, Any]] | None = None,
        *,
        ends: bool = True,
        points: Sequence[tuple[float, float]] = (),
    ) -> ToolResult:
        notes = [*told(self._events() if events is None else events), *([f"note: {note}"] if note else [])]
        images = [await self._picture()] if self.screenshots else []
        text = "\n".join([*notes, self.page.shown(self.max_chars)])
        return ToolResult(text, images=images, points=points, ends_reply=ends)

    async def _picture(self) -> bytes:
        picture = base64.b64decode(await self._do("screenshot"))
        self._pictured = True
        return picture

    def _events(self) -> Sequence[dict[str, Any]]:
        return self._context.take_events() if self._context is not None else ()

    async def _do(self, op: str, **fields: Any) -> Any:
        """Runs an operation of the driver. Adds notes on events to a PageFailure."""
        assert self._context is not None
        try:
            return await self._context.do(op, timeout_s=self.action_s, **fields)
        except PageFailure as failure:
            notes = told(self._events())
            said = "\n".join([failure.message, *notes])
            raise PageFailure(failure.kind, said) from None


_HITS = 10
