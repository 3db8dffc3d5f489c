"""Lookup of Chromium, and start of the browser driver shared by the episodes of an event loop."""

from __future__ import annotations

import asyncio
import atexit
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

from agentrl.tools.builtin.web.client import BrowserContext, BrowserLost, Driver
from agentrl.types.errors import MissingExtra, RecipeError, require_versions
from agentrl.types.lifeline import Lifeline
from agentrl.types.paths import data_path
from agentrl.types.stdlib import piped

NAMES = ("chromium-headless-shell", "chrome-headless-shell", "chromium", "chromium-browser", "google-chrome")
"""Program names of Chromium in order of preference: the headless shell is twice as fast as the full browser."""

FLAGS = (
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--hide-scrollbars",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
)
OLDEST_CHROMIUM = 120
IDLE_S = 30.0
"""Seconds after which a driver without contexts ends."""


@dataclass(frozen=True)
class Launch:
    """Launch settings of Chromium.

    Attributes:
        executable: path of the program; None: the first installed of `NAMES`.
        flags: flags in addition to `FLAGS`.
        browser_s, browser_contexts: maximum age and number of contexts of a browser; later contexts get a new one.
    """

    executable: str | None = None
    flags: tuple[str, ...] = ()
    browser_s: float = 3600.0
    browser_contexts: int = 1000

    def settings(self) -> dict[str, Any]:
        """Returns the settings in the driver's form.

        Raises:
            RecipeError: Chromium is missing or too old.
            MissingExtra: playwright is not installed.
        """
        root = ("--no-sandbox",) if os.geteuid() == 0 else ()
        return {
            "executable": find_chromium(self.executable),
            "args": [*FLAGS, *root, *self.flags],
            "browser_s": self.browser_s,
            "browser_contexts": self.browser_contexts,
        }


@cache
def find_chromium(path: str | None = None) -> str:
    """Returns the path of a Chromium that Playwright and agentrl support.

    Raises:
        RecipeError: Chromium is missing, does not run, or is too old.
        MissingExtra: playwright is not installed or too old.
    """
    if importlib.util.find_spec("playwright") is None:
        raise MissingExtra("playwright, which drives Chromium,", "web")
    require_versions("web")
    found = path or next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        raise RecipeError("there is no Chromium on this machine", remedy=INSTALL)
    if shutil.which(found) is None:
        raise RecipeError(f"there is no program {found}", place="chromium", remedy=f"give its path, or {INSTALL}")
    try:
        ran = subprocess.run([found, "--version"], capture_output=True, text=True, timeout=30, check=False)
        said = ran.stdout.strip()
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RecipeError(f"{found} does not run: {error}", place="chromium", remedy=INSTALL) from None
    number = re.search(r"(\d+)\.\d+\.\d+", said)
    if number is None or int(number[1]) < OLDEST_CHROMIUM:
        what = said or ran.stderr.strip()[-200:] or "nothing"
        problem = f"{found} is no Chromium {OLDEST_CHROMIUM} or newer: --version says {what}"
        raise RecipeError(problem, place="chromium", remedy=INSTALL)
    return found


INSTALL = "apt-get install -y chromium-headless-shell, or playwright install chromium-headless-shell and give its path"

_drivers: dict[tuple[asyncio.AbstractEventLoop, Launch], tuple[Driver, subprocess.Popen[bytes]]] = {}
_starting: dict[tuple[asyncio.AbstractEventLoop, Launch], asyncio.Lock] = {}


async def open_context(launch: Launch | None = None, **options: Any) -> BrowserContext:
    """Opens a context in the browser shared by the episodes of this event loop; starts the browser if needed.

    Args:
        options: fields of `context`.

    Raises:
        RecipeError: Chromium is missing or too old.
        MissingExtra: playwright is not installed.
        BrowserLost: the browser does not start.
    """
    key = (asyncio.get_running_loop(), launch or Launch())
    _drop_closed_loops()
    async with _starting.setdefault(key, asyncio.Lock()):
        if key not in _drivers or not _drivers[key][0].alive:
            # In a thread: the first lookup runs Chromium for its version.
            settings = await asyncio.to_thread(key[1].settings)
            _drivers[key] = start(settings)
            key[0].call_later(IDLE_S, _end_if_idle, key)
    return await _drivers[key][0].context(**options)


def start(settings: dict[str, Any]) -> tuple[Driver, subprocess.Popen[bytes]]:
    """Starts a driver on this machine. It ends with this process, even if that is killed."""
    loop = asyncio.get_running_loop()
    pipe = subprocess.PIPE
    try:
        with Lifeline() as lifeline:
            command = [
                *lifeline.guard,
                sys.executable,
                str(data_path("tools", "browser", "driver.py")),
                json.dumps(settings),
            ]
            process = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0, start_new_session=True,
                pass_fds=lifeline.pass_fds,
            )  # fmt: skip
    except OSError as error:
        raise BrowserLost(f"the browser driver does not start: {error}") from None
    last: deque[str] = deque(maxlen=20)

    async def send(line: bytes) -> None:
        entry = piped(process.stdin)
        await asyncio.to_thread(_write, entry, line) if len(line) > 60_000 else _write(entry, line)

    driver = Driver(send, lifeline.close, lambda: "\n".join(last))

    def take(data: bytes) -> None:
        try:
            driver.received(data)
        except ValueError:
            driver.end()

    def read() -> None:
        with suppress(RuntimeError, ValueError):  # the loop was closed
            output = piped(process.stdout)
            while data := os.read(output.fileno(), 1 << 20):
                loop.call_soon_threadsafe(take, data)
            process.wait()
            loop.call_soon_threadsafe(driver.ended)
        lifeline.close()
        process.wait()

    def listen() -> None:
        for line in piped(process.stderr):
            last.append(line.decode("utf-8", "replace").rstrip())

    for work in (read, listen):
        threading.Thread(target=work, daemon=True, name=f"browser-driver-{work.__name__}").start()
    return driver, process


def _write(pipe: Any, line: bytes) -> None:
    while line:
        line = line[pipe.write(line) :]


def _end_if_idle(key: tuple[asyncio.AbstractEventLoop, Launch]) -> None:
    driver, _ = _drivers.get(key, (None, None))
    if driver is None or not driver.alive:
        return
    if driver.contexts:
        key[0].call_later(IDLE_S, _end_if_idle, key)
        return
    _end(key)


def _end(key: tuple[asyncio.AbstractEventLoop, Launch]) -> None:
    """Ends a driver by closing its stdin; it ends Chromium too."""
    driver, process = _drivers.pop(key)
    _starting.pop(key, None)
    driver.alive = False
    with suppress(OSError):
        piped(process.stdin).close()


def _drop_closed_loops() -> None:
    for key in [key for key in _drivers if key[0].is_closed()]:
        _end(key)


@atexit.register
def _end_all() -> None:
    for key in list(_drivers):
        _end(key)
