"""The `web` tool in a sandbox: its own Chromium, the sandbox's network, and what is said where there is no browser."""

from __future__ import annotations

import asyncio
import importlib.util
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agentrl.sandbox.namespace.backend import NamespaceBackend
from agentrl.tools.builtin.web.client import BrowserLost
from agentrl.tools.builtin.web.inside import InsideDriver
from agentrl.tools.builtin.web.tool import Web
from agentrl.tools.methods import toolbox
from agentrl.types.errors import ToolError
from agentrl.types.sandbox import NetworkAllow, Sandbox, SandboxImageUnusable, SandboxSpec
from agentrl.types.task import Task

pytestmark = pytest.mark.slow

CHROMIUM = shutil.which("chromium-headless-shell") or shutil.which("chromium")
PACKAGES = "/work/packages"
PAGE = "<!doctype html><title>Inside</title><h1>Inside</h1><a href='http://other.test/'>Out</a>"
SERVE = ["python3", "-u", "-m", "http.server", "8000", "--bind", "127.0.0.1"]
URL = "http://127.0.0.1:8000/"


@pytest.fixture
async def backend() -> AsyncIterator[NamespaceBackend]:
    backend = NamespaceBackend()
    yield backend
    await backend.close()


async def furnished(backend: NamespaceBackend, spec: SandboxSpec) -> Sandbox:
    """A sandbox with playwright, as `agentrl/browser` has it: of this environment, for the programs of this machine."""
    sandbox = await backend.create(spec.model_copy(update={"env": {"PYTHONPATH": PACKAGES}}))
    for name in ("playwright", "greenlet"):
        found = importlib.util.find_spec(name)
        assert found is not None
        assert found.origin is not None
        await sandbox.put(Path(found.origin).parent, f"{PACKAGES}/{name}")
    return sandbox


async def test_a_page_of_the_sandbox_is_shown_and_nothing_outside_is_reached(backend: NamespaceBackend) -> None:
    spec = SandboxSpec(files={"index.html": PAGE}, network=NetworkAllow(allow=("allowed.test",)))
    sandbox = await furnished(backend, spec)
    await (await sandbox.spawn(SERVE)).read()  # it says that it serves
    web = Web(url=URL, allow=["127.0.0.1:8000", "other.test"], where="sandbox", chromium=CHROMIUM)
    assert web.needs_sandbox
    await web.open(Task.of("t", "Look."), sandbox)
    tools = toolbox([web])
    assert 'heading "Inside"' in web.page.shown(1000)
    running = (await sandbox.exec(["sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"])).text
    assert "driver.py" in running
    assert "--no-sandbox" in running
    with pytest.raises(ToolError) as refused:
        await tools["open"].call({"url": "http://other.test/"})
    assert "other.test:80" in str(refused.value)
    await web.close()
    left = (await sandbox.exec(["sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"])).text
    assert "driver.py" not in left
    await sandbox.close()


class Babbling:
    """A sandbox process whose output cannot be parsed."""

    def __init__(self) -> None:
        self.killed, self._said = asyncio.Event(), [b"no answer\n", b""]

    async def write(self, data: bytes) -> None:
        pass

    async def read(self, stream: str = "stdout", most: int = 0) -> bytes:
        if stream == "stdout" and self._said:
            return self._said.pop(0)
        await asyncio.Event().wait()
        return b""

    async def kill(self) -> None:
        await asyncio.sleep(0)
        self.killed.set()


async def test_a_driver_that_babbles_is_lost_at_once_and_ends() -> None:
    process = Babbling()
    inside = InsideDriver(process)  # type: ignore[arg-type]
    with pytest.raises(BrowserLost):
        await inside.driver.request("stats", timeout_s=1e6)
    inside.driver.end()
    await process.killed.wait()
    await inside.close()


class Crashed(Babbling):
    """A sandbox process that has ended, and whose stderr arrives late and in parts."""

    def __init__(self) -> None:
        super().__init__()
        self._complaints = [
            b"Traceback (most recent call last):\nModuleNotFoundError: No module na",
            b"med 'playwright'\n",
        ]

    async def read(self, stream: str = "stdout", most: int = 0) -> bytes:
        await asyncio.sleep(0.02 if stream == "stderr" else 0)
        return self._complaints.pop(0) if stream == "stderr" and self._complaints else b""


@pytest.mark.parametrize("refuses", [False, True])
async def test_the_last_words_of_a_driver_are_waited_for(refuses: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    async def write(self: Babbling, data: bytes) -> None:
        raise BrokenPipeError

    if refuses:
        monkeypatch.setattr(Crashed, "write", write)
    inside = InsideDriver(Crashed())  # type: ignore[arg-type]
    with pytest.raises(SandboxImageUnusable, match="No module named 'playwright'"):
        await inside.context()
    await inside.close()


async def test_a_sandbox_without_a_browser_is_said_to_have_none(backend: NamespaceBackend) -> None:
    sandbox = await backend.create(SandboxSpec())
    web = Web(url=URL, where="sandbox", chromium=CHROMIUM)
    with pytest.raises(SandboxImageUnusable, match="No module named 'playwright'") as unusable:
        await web.open(Task.of("t", "Look."), sandbox)
    assert "agentrl sandbox build browser" in str(unusable.value)
    await web.close()
    await sandbox.close()
