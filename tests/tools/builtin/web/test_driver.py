"""The driver of this machine and the way to it, with a Playwright that has no browser."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from agentrl.tools.builtin.web.client import BrowserLost, Driver
from agentrl.tools.builtin.web.launching import start
from tests.waiting import children_of, until, until_async

pytestmark = pytest.mark.slow

PLAYWRIGHT = """
import contextlib, types
async def launch(**settings):
    print("said by a library")
    raise RuntimeError("no browser " + "here " * 300_000)
@contextlib.asynccontextmanager
async def async_playwright():
    yield types.SimpleNamespace(chromium=types.SimpleNamespace(launch=launch))
"""

Running = tuple[Driver, "subprocess.Popen[bytes]"]


@pytest_asyncio.fixture(loop_scope="session")
async def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Running]:
    (tmp_path / "playwright").mkdir()
    (tmp_path / "playwright" / "__init__.py").write_text("")
    (tmp_path / "playwright" / "async_api.py").write_text(PLAYWRIGHT)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    driver, process = start({"executable": "chromium", "args": []})
    yield driver, process
    driver.end()
    await until_async(lambda: process.poll() is not None)


async def test_requests_side_by_side_are_answered_each(running: Running) -> None:
    driver, process = running
    hello = driver.value(await driver.request("hello"))
    assert children_of(process.pid) == [hello["driver"]], "below a guard"
    unknown = await driver.request("where", context="c9")
    assert (unknown["error"], unknown["message"]) == ("browser", "there is no context 'c9'")
    numbers = [(await driver.request("stats", ballast="x" * size))["id"] for size in (0, 1 << 20, 70_000)]
    assert numbers == [3, 4, 5]


async def test_a_browser_that_does_not_start_is_told_in_full(running: Running) -> None:
    driver, _ = running
    with pytest.raises(BrowserLost, match="Chromium does not start: no browser here") as lost:
        await driver.context()
    assert len(str(lost.value)) > 1_500_000
    assert not driver.alive, "the next one is started by a new driver"


async def test_it_ends_when_its_stdin_is_closed(running: Running) -> None:
    driver, process = running
    assert driver.value(await driver.request("hello"))["driver"]
    assert process.stdin is not None
    process.stdin.close()
    await until_async(lambda: process.poll() is not None)
    assert process.returncode == 0
    await until_async(lambda: not driver.alive)
    with pytest.raises(BrowserLost, match="driver is gone"):
        await driver.request("hello")


async def test_one_that_is_ended_is_killed_with_its_guard(running: Running) -> None:
    driver, process = running
    pid = driver.value(await driver.request("hello"))["driver"]
    driver.end()
    await until_async(lambda: process.poll() is not None)
    until(lambda: not Path(f"/proc/{pid}").exists())
