"""Browser driver in the sandbox of an episode, for untrusted pages."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress

from agentrl.tools.builtin.web.client import BrowserContext, BrowserLost, Driver
from agentrl.tools.builtin.web.launching import FLAGS, Launch
from agentrl.types.errors import SandboxError
from agentrl.types.paths import data_path
from agentrl.types.sandbox import Process, Sandbox, SandboxImageUnusable

FOLDER = "/tmp/.agentrl-browser"
CHROMIUM = "/usr/bin/chromium"
"""Path of Chromium in the image `agentrl/browser`."""

_SAID = 8000  # characters of its stderr that are kept
_READ_S = 2.0  # maximum wait for the rest of its stderr, once it has ended

_MISSING = ("No module named 'playwright'", "Executable doesn't exist")
"""Messages of the driver if the image lacks a component."""


class InsideDriver:
    """Driver with its own Chromium; both end with the sandbox."""

    def __init__(self, process: Process) -> None:
        self._process, self._said = process, ""
        self.driver = Driver(process.write, self._kill, lambda: self._said, inside=True)
        self._readers = asyncio.create_task(self._answers()), asyncio.create_task(self._complaints())
        self._killing: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, sandbox: Sandbox, launch: Launch) -> InsideDriver:
        """Starts the driver; Chromium starts with the first context.

        Raises:
            SandboxLost: the sandbox died.
        """
        for folder in ("browser", "shared"):
            for source in sorted(data_path("tools", folder).glob("*.[pj][ys]")):
                await sandbox.write(f"{FOLDER}/{folder}/{source.name}", source.read_bytes())
        # The sandbox provides the isolation: Chromium's own sandbox does not work inside it.
        settings = {"executable": launch.executable or CHROMIUM, "args": [*FLAGS, "--no-sandbox", *launch.flags]}
        command = ["python3", "-B", f"{FOLDER}/browser/driver.py", json.dumps(settings)]
        return cls(await sandbox.spawn(command))

    async def context(self, **options: object) -> BrowserContext:
        """Opens the context of the episode.

        Raises:
            SandboxImageUnusable: the sandbox lacks Chromium or playwright.
            BrowserLost: the browser does not start.
        """
        try:
            return await self.driver.context(**options)
        except BrowserLost as error:
            await self._complained()
            said = f"{error}\n{self._said}"
            if any(sign in said for sign in _MISSING):
                raise SandboxImageUnusable(
                    f"the sandbox of web has no browser: {said.strip().splitlines()[-1][:200]}",
                    remedy="sandbox.spec.image: agentrl/browser (agentrl sandbox build browser), or where: host",
                ) from None
            raise

    async def close(self) -> None:
        """Ends the driver."""
        self.driver.ended()
        with suppress(SandboxError, OSError):
            await self._process.kill()
        await self._complained()
        for reader in self._readers:
            reader.cancel()

    async def _complained(self) -> None:
        """Waits until the stderr of the driver, which has ended, is read: its stdout may end first."""
        await asyncio.wait(self._readers[1:], timeout=_READ_S)

    def _kill(self) -> None:
        self._killing = asyncio.create_task(self.close())

    async def _answers(self) -> None:
        """Passes output to the driver. Stops at its end, or at the first answer that is too long or none.

        Other programs of the sandbox may write where the driver does.
        """
        try:
            with suppress(SandboxError, OSError, ValueError):
                while data := await self._process.read("stdout", 1 << 20):
                    self.driver.received(data)
        finally:
            self.driver.ended()

    async def _complaints(self) -> None:
        with suppress(SandboxError, OSError):
            while data := await self._process.read("stderr"):
                self._said = (self._said + data.decode("utf-8", "replace"))[-_SAID:]
