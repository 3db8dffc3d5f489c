"""Implementation of `Screen` for a headless desktop: the client of `tools/desktop/driver.py`."""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from agentrl.registry.checks import not_installed
from agentrl.sandbox.frames import Frames, frame
from agentrl.tools.builtin.gui.link import HostLink, Link, SandboxLink
from agentrl.tools.builtin.gui.screen import Button, Direction, Element, Point, ScreenEnded, ScreenLost
from agentrl.types.clocks.deadline import Deadline
from agentrl.types.errors import SandboxError, ToolError
from agentrl.types.parts.foreign_json import read_json
from agentrl.types.paths import data_path
from agentrl.types.sandbox import Sandbox, SandboxImageUnusable

PACKAGES = ("xvfb", "openbox", "libxtst6", "fonts-dejavu-core", "adwaita-icon-theme")
"""Debian packages: X server, window manager, libraries, fonts and icons."""
ELEMENT_PACKAGES = ("at-spi2-core", "gir1.2-atspi-2.0", "python3-gi", "dbus-daemon")
"""Debian packages for lists of elements."""

PARTS_S = 10.0
"""As in the driver: the least bound on the start of each part. There are four beside the program."""
LARGEST = 16 << 20
"""Bytes of an answer beside four a pixel: a list of elements has less."""
MARGIN_S = 15.0
"""Seconds beyond its own limit after which a request counts as a lost screen."""
WORDS_S = 2.0
"""Timeout for reading the stderr of a driver that exited."""
_INSIDE = "/tmp/.agentrl-desktop"


@dataclass(frozen=True)
class DesktopSettings:
    """Settings of a desktop.

    Attributes:
        size: width and height, pixels.
        elements: enables lists of elements.
        settle_s: timeout of one `settle`.
        start_s: timeout of the program's first window.
    """

    size: tuple[int, int] = (1024, 768)
    elements: bool = False
    settle_s: float = 2.0
    start_s: float = 20.0


class Desktop:
    """Desktop. Made by `open_on_host` or `open_in_sandbox`.

    Attributes:
        born: time of creation on the monotonic clock, seconds.
        episodes: number of episodes that used it, including the current one.
    """

    def __init__(self, link: Link, settings: DesktopSettings, folder: str) -> None:
        self.size, self.settings = settings.size, settings
        self.born, self.episodes = time.monotonic(), 0
        self._link, self._folder = link, folder
        self._broken, self._closed = False, False
        self._latencies: list[float] = []
        self._frames = Frames(LARGEST + 4 * self.size[0] * self.size[1])

    @classmethod
    async def open_on_host(cls, settings: DesktopSettings) -> Desktop:
        """Opens a desktop on this machine, for trusted programs.

        Raises:
            RecipeError: a package is missing.
        """
        must_have(settings.elements)
        folder = tempfile.mkdtemp(prefix="agentrl-desktop-")
        link = HostLink([sys.executable, "-B", str(data_path("tools", "desktop", "driver.py"))], f"{folder}/driver.log")
        return cls(link, settings, folder)

    @classmethod
    async def open_in_sandbox(cls, sandbox: Sandbox, settings: DesktopSettings) -> Desktop:
        """Opens a desktop in a sandbox; its image must have the packages.

        Raises:
            SandboxLost: the sandbox died.
        """
        for folder in ("desktop", "shared"):
            for source in data_path("tools", folder).glob("*.py"):
                await sandbox.write(f"{_INSIDE}/program/{folder}/{source.name}", source.read_bytes())
        link = await SandboxLink.open(sandbox, ["python3", "-B", f"{_INSIDE}/program/desktop/driver.py"])
        return cls(link, settings, f"{_INSIDE}/")

    async def start(self, command: Sequence[str], cwd: str) -> None:
        """Starts a program and waits until its first window is visible and still.

        Args:
            command: program and arguments; empty: a bare screen.
            cwd: working folder.

        Raises:
            RecipeError: the program is not installed on this machine, or the folder does not exist.
            SandboxImageUnusable: a package is not installed in the sandbox.
            ScreenLost: the program showed no window or exited at once.
        """
        self.episodes += 1
        self._latencies.clear()
        own, (width, height) = self.settings, self.size
        fields = {"width": width, "height": height, "command": [*command], "cwd": cwd, "elements": own.elements}
        fields |= {"folder": f"{self._folder}/desktop", "wait_s": own.start_s}
        await self._ask("start", fields, 5 * max(PARTS_S, own.start_s))

    async def reset(self) -> None:
        """Ends the program and all its processes; the bare server stays for the next `start`."""
        await self._ask("reset")

    def slow(self, step_s: float) -> bool:
        """Returns True if the median step of this episode took longer than `step_s`."""
        return bool(self._latencies) and statistics.median(self._latencies) > step_s

    @property
    def broken(self) -> bool:
        """True if a failed request left the desktop in an unknown state."""
        return self._broken

    async def screenshot(self) -> bytes:
        """Returns the current screen as PNG bytes."""
        return (await self._ask("screenshot"))[1]

    async def elements(self) -> tuple[list[Element], bool]:
        """Returns the elements from top to bottom, and False if the list is incomplete (a program timed out)."""
        limit = self.settings.settle_s + 3
        said = read_json((await self._ask("elements", {"limit_s": limit}, limit))[1])
        found = [
            Element(each["role"], each["name"], each["text"], tuple(each["states"]), tuple(each["box"]))
            for each in said["elements"]
        ]
        return found, said["whole"]

    async def move(self, to: Point) -> None:
        """Moves the pointer."""
        await self._ask("move", {"x": to[0], "y": to[1]})

    async def click(self, at: Point, button: Button = "left", times: int = 1) -> None:
        """Clicks `times` times."""
        await self._ask("click", {"x": at[0], "y": at[1], "button": button, "times": times})

    async def drag(self, start: Point, end: Point) -> None:
        """Drags with the left button."""
        await self._ask("drag", {"x": start[0], "y": start[1], "to_x": end[0], "to_y": end[1]})

    async def scroll(self, at: Point, direction: Direction, clicks: int) -> None:
        """Turns the wheel."""
        wheel = {"left": "wheel_left", "right": "wheel_right"}.get(direction, direction)
        await self._ask("click", {"x": at[0], "y": at[1], "button": wheel, "times": clicks})

    async def type(self, text: str) -> None:
        """Types a text; a line break is the Return key."""
        await self._ask("type", {"text": text}, 30 + len(text) / 10)

    async def press(self, keys: Sequence[str]) -> None:
        """Presses keys together.

        Raises:
            ToolError: the key is unknown.
        """
        await self._ask("press", {"keys": [*keys]})

    async def settle(self) -> str:
        """Waits until the program has processed its input and the screen is still.

        Raises:
            ScreenEnded: the program was ended by a signal: it crashed.
        """
        limit, began = self.settings.settle_s, time.monotonic()
        found, _ = await self._ask("settle", {"limit_s": limit}, 2 * limit)
        self._latencies.append(time.monotonic() - began)
        if found["ended"] is not None and found["ended"] < 0:
            raise ScreenEnded(f"the program of the screen was ended by signal {-found['ended']}")
        if not found["answers"]:
            return "The program in front does not answer."
        return "" if found["windows"] else "No window is open."

    async def close(self) -> None:
        """Ends the desktop. May be called twice."""
        if not self._closed:
            self._closed = True
            await self._link.close()
            if isinstance(self._link, HostLink):
                shutil.rmtree(self._folder, ignore_errors=True)

    async def _ask(
        self, do: str, fields: Mapping[str, Any] | None = None, limit_s: float = 0.0
    ) -> tuple[dict[str, Any], bytes]:
        """Sends one request. An incomplete request breaks the screen, because its effect is unknown.

        Raises:
            ScreenEnded: the driver is gone, says so, gives no answer, or gives none in time in a sandbox.
            ScreenLost: it gives none in time.
            ToolError: the request makes no sense.
        """
        if self._broken:
            raise ScreenEnded("the screen broke earlier")
        self._broken = True  # until the answer is whole
        try:
            async with Deadline(limit_s + MARGIN_S):
                await self._link.send(frame({"do": do, **(fields or {})}))
                reply, body = await self._reply()
                ok, kind, error = reply["ok"], reply.get("kind", ""), str(reply.get("error", ""))
        except (ValueError, KeyError) as fault:
            raise ScreenEnded(f"the desktop answered {do!r} with what is no answer: {str(fault)[:200]}") from None
        except TimeoutError:
            lost = ScreenLost if isinstance(self._link, HostLink) else ScreenEnded
            raise lost(f"the desktop did not answer {do!r} within {limit_s + MARGIN_S:g} s") from None
        except (OSError, EOFError):
            words = ""
            with suppress(TimeoutError, SandboxError):
                async with Deadline(WORDS_S):
                    words = " ".join((await self._link.last_words()).split())
            raise ScreenEnded(f"the desktop ended during {do!r}{f': {words}' if words else ''}") from None
        if ok:
            self._broken = False
            return reply, body
        if kind == "input":
            self._broken = False
            raise ToolError(error)
        raise self._missing(error) if kind == "missing" and do == "start" else ScreenEnded(error)

    def _missing(self, text: str) -> Exception:
        if isinstance(self._link, HostLink):
            return not_installed(text, install(text), "gui")
        remedy = "sandbox.spec.image: agentrl/desktop (agentrl sandbox build desktop); sandboxes without an image have "
        return SandboxImageUnusable(
            f"the sandbox of gui has no {text}", remedy=f"{remedy}what this machine has: {install(text)}"
        )

    async def _reply(self) -> tuple[dict[str, Any], bytes]:
        while data := await self._link.receive():
            if replies := [*self._frames.feed(data)]:
                return replies[0]
        raise EOFError


def must_have(elements: bool) -> None:
    """Checks that this machine has the programs for desktops.

    Raises:
        RecipeError: a program is missing; the remedy is the install command.
    """
    if (missing := missing_program(elements)) is not None:
        raise not_installed(missing, install(missing), "gui")


def missing_program(elements: bool = False) -> str | None:
    """Returns the first program for desktops that this machine lacks; None if it has all."""
    wanted = ("Xvfb", "openbox", *(("dbus-daemon",) if elements else ()))
    return next((name for name in wanted if shutil.which(name) is None), None)


def install(missing: str) -> str:
    """Returns the command that installs the packages for desktops, and a missing application."""
    known = {"Xvfb", "openbox", "dbus-daemon", "libX11.so.6", "libXtst.so.6"}
    names = [*PACKAGES, *ELEMENT_PACKAGES]
    more = [] if any(each in missing for each in (*known, *names)) else [missing]
    return f"apt-get install -y --no-install-recommends {' '.join([*names, *more])}"
