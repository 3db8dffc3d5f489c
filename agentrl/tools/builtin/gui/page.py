"""Implementation of `Screen` for a page of the browser driver."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, ValidationError

from agentrl.tools.builtin.gui.screen import Button, Direction, Element, Point, ScreenEnded, ScreenLost
from agentrl.tools.builtin.web.client import BrowserContext, PageFailure
from agentrl.tools.builtin.web.launching import Launch, open_context
from agentrl.tools.builtin.web.page import told
from agentrl.types.errors import RecipeError, nearest

NOTCH = 100
"""CSS pixels per click of the wheel."""
MARGIN_S = 15.0
"""Seconds for an operation, in addition to loading and settling."""
KEYS = {
    "ctrl": "Control", "control": "Control", "shift": "Shift", "alt": "Alt", "option": "Alt",
    "super": "Meta", "win": "Meta", "cmd": "Meta", "command": "Meta", "meta": "Meta",
    "enter": "Enter", "return": "Enter", "esc": "Escape", "escape": "Escape", "tab": "Tab", "space": "Space",
    "spacebar": "Space", "backspace": "Backspace", "back_space": "Backspace", "delete": "Delete", "del": "Delete",
    "insert": "Insert", "ins": "Insert", "home": "Home", "end": "End",
    "pageup": "PageUp", "page_up": "PageUp", "pgup": "PageUp", "prior": "PageUp",
    "pagedown": "PageDown", "page_down": "PageDown", "pgdn": "PageDown", "next": "PageDown",
    "up": "ArrowUp", "down": "ArrowDown", "left": "ArrowLeft", "right": "ArrowRight",
    "arrowup": "ArrowUp", "arrowdown": "ArrowDown", "arrowleft": "ArrowLeft", "arrowright": "ArrowRight",
    "capslock": "CapsLock", "caps_lock": "CapsLock", "menu": "ContextMenu", "printscreen": "PrintScreen",
    "print": "PrintScreen", **{f"f{number}": f"F{number}" for number in range(1, 13)},
}  # fmt: skip
"""Browsers' key names, by lower-case names of X, pyautogui and browsers."""
# Wheel events scroll in later frames. Two equal positions in a row mean that scrolling has ended.
FRAMES = """async () => { let last, now, looks = 0; do { last = now;
await new Promise(done => { setTimeout(done, 200); requestAnimationFrame(() => requestAnimationFrame(done)) });
now = scrollX + ' ' + scrollY } while (last !== now && ++looks < 20) }"""
_SIDES = ("_l", "_r")
"""Suffixes of X's names of modifier keys."""


class PageSettings(BaseModel):
    """Settings of a page.

    Attributes:
        url: address of the page.
        allow: hosts that the browser may reach; `*`: all. None: only the host of `url`.
        flags: command line flags of Chromium.
        dialogs: answer to dialogs: `accept` or `dismiss`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str
    allow: tuple[str, ...] | None = None
    flags: tuple[str, ...] = ()
    dialogs: Literal["accept", "dismiss"] = "dismiss"

    @classmethod
    def of(cls, given: str | Mapping[str, Any]) -> PageSettings:
        """Parses the setting `page`: an address, or `{url, allow, flags, dialogs}`.

        Raises:
            RecipeError: a key is wrong or missing, or Chromium is not installed.
        """
        fields = {"url": given} if isinstance(given, str) else dict(given)
        if (wrong := next((key for key in fields if key not in cls.model_fields), None)) is not None:
            raise RecipeError(f"gui: page has no key {wrong!r}", remedy=nearest(wrong, cls.model_fields))
        if "url" not in fields:
            raise RecipeError("gui: page has no url", remedy="page: http://... or page: {url: http://...}")
        try:
            made = cls.model_validate(fields)
        except ValidationError as error:
            first = error.errors()[0]
            place = "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in first["loc"])
            raise RecipeError(f"gui: page{place} is {first['input']!r}", remedy=first["msg"]) from None
        Launch(flags=made.flags).settings()  # so that a recipe check reports a missing browser
        return made


class PageScreen:
    """Screen of a browser page, without the window around it. Made by `open`."""

    def __init__(self, context: BrowserContext, size: tuple[int, int], settle_s: float) -> None:
        self.size = size
        self._context, self._settle_s = context, settle_s

    @classmethod
    async def open(cls, settings: PageSettings, size: tuple[int, int], load_s: float, settle_s: float) -> PageScreen:
        """Opens the page of `settings`.

        Raises:
            BrowserLost: the browser does not start.
            ScreenLost: the page cannot be opened.
        """
        host = urlsplit(settings.url).netloc.rpartition("@")[2]
        allow = (host,) if settings.allow is None else settings.allow
        context = await open_context(
            Launch(flags=settings.flags),
            viewport=[*size],
            allow=None if "*" in allow else [*allow],
            dialogs=settings.dialogs,
        )
        screen = cls(context, size, settle_s)
        try:
            await screen._do("goto", url=settings.url, load_s=load_s, timeout_s=load_s + MARGIN_S)
            await screen.settle()
        except BaseException as error:
            await context.close()
            if isinstance(error, PageFailure):
                raise ScreenLost(f"the page {settings.url} cannot be opened: {error.message}") from None
            raise
        return screen

    async def screenshot(self) -> bytes:
        """Returns the current screen as PNG bytes."""
        return base64.b64decode(await self._do("screenshot"))

    async def elements(self) -> tuple[list[Element], bool]:
        """Returns the actionable elements in the viewport, in page order, and True: the list is always complete."""
        found = await self._do("elements")
        return [_element(each) for each in found if each["visible"]], True

    async def move(self, to: Point) -> None:
        """Moves the pointer."""
        await self._do("mouse_move", x=to[0], y=to[1])

    async def click(self, at: Point, button: Button = "left", times: int = 1) -> None:
        """Clicks `times` times."""
        await self._do("mouse_click", x=at[0], y=at[1], button=button, count=times)

    async def drag(self, start: Point, end: Point) -> None:
        """Drags with the left button, in ten steps."""
        await self._do("mouse_drag", path=[[*start], [*end]], steps=10)

    async def scroll(self, at: Point, direction: Direction, clicks: int) -> None:
        """Turns the wheel."""
        by = NOTCH * clicks * (-1 if direction in ("up", "left") else 1)
        across = direction in ("left", "right")
        await self._do("wheel", x=at[0], y=at[1], dx=by if across else 0, dy=0 if across else by)

    async def type(self, text: str) -> None:
        """Types a text key by key; a line break is the Return key."""
        await self._do("write", text=text, keys=True)

    async def press(self, keys: Sequence[str]) -> None:
        """Presses keys together. alt+Left goes back, as in a browser window.

        Raises:
            PageFailure: the key is unknown.
        """
        names = [_key(key) for key in keys]
        if names == ["Alt", "ArrowLeft"]:
            await self._do("back", load_s=self._settle_s)
        else:
            await self._do("key", keys="+".join(names))

    async def settle(self) -> str:
        """Waits for the requests of an action to finish. Returns notes on events: dialogs, other tabs, ..."""
        over = (await self._do("settle", seconds=self._settle_s))["over"]
        with suppress(PageFailure):  # navigated to another page
            await self._do("evaluate", script=FRAMES)
        return "\n".join([*told(self._context.take_events()), *([] if over else ["The page is still loading."])])

    async def close(self) -> None:
        """Closes the page. May be called twice."""
        await self._context.close()

    async def _do(self, op: str, *, timeout_s: float | None = None, **fields: Any) -> Any:
        """Runs an operation of the driver.

        Raises:
            PageFailure: the page cannot do it.
            ScreenEnded: it crashed.
            BrowserLost: the browser is gone.
        """
        try:
            return await self._context.do(op, timeout_s=timeout_s or self._settle_s + MARGIN_S, **fields)
        except PageFailure as failure:
            if failure.kind == "crashed":
                raise ScreenEnded(f"the page crashed: {failure.message}") from None
            raise


def _element(found: Mapping[str, Any]) -> Element:
    """Makes an element of the driver's record: `value=` of a field is its text, the rest are states."""
    left, top, width, height = found["box"]
    values = [each for each in found["state"] if each.startswith("value=")]
    states = tuple(each for each in found["state"] if not each.startswith("value="))
    text = values[0].removeprefix("value=") if values else ""
    with suppress(ValueError):  # several selected options are not a single text
        text = str(json.loads(text)) if text.startswith('"') else text
    return Element(found["role"], found["name"], text, states, (left, top, left + width, top + height))


def _key(name: str) -> str:
    """Returns the browsers' name of a key. Unknown names are returned unchanged, and the driver rejects them."""
    plain = name.lower().removesuffix(_SIDES[0]).removesuffix(_SIDES[1])
    return name if len(name) == 1 else KEYS.get(plain, name)
