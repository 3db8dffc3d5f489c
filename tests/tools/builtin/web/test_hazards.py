"""Pages that misbehave, and browsers that die: a note for the model, or an infrastructure error; never a hang."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import pytest

from agentrl.tools.builtin.web import launching
from agentrl.tools.builtin.web.client import BrowserLost, Driver, PageFailure
from agentrl.tools.builtin.web.launching import open_context
from agentrl.tools.builtin.web.tool import Web
from agentrl.types.task import Task
from tests.tools.builtin.web.conftest import LONG_S, Opens
from tests.tools.builtin.web.site import SENT
from tests.tools.builtin.web.test_web import id_of
from tests.waiting import children_of, descendants_of, limits, running_program, until

pytestmark = pytest.mark.slow


async def alive(tool: Web) -> bool:
    """Whether the tool still opens pages."""
    tool.load_s = tool.settle_s = tool.action_s = LONG_S
    return "page: Home" in (await tool.visit("/")).text


async def test_a_script_that_hangs_is_stopped(web: Opens) -> None:
    tool = await web("/hang")
    tool.action_s = 2
    with pytest.raises(PageFailure, match="the page hung") as caught:
        await tool.click(id_of(tool, "Hang"))
    assert caught.value.ends_reply
    assert await alive(tool)


async def test_a_page_that_crashes(web: Opens) -> None:
    tool = await web("/")
    assert tool._context is not None
    with pytest.raises(PageFailure, match="crashed"):
        await tool._context.do("goto", url="chrome://crash")
    assert (await tool.visit("/later")).text.splitlines()[1:2] == ["page: later"]


@pytest.mark.parametrize(("path", "note"), [
    ("/alert", "dialog (alert): 'Sold out'; it was accepted"),
    ("/confirm", "dialog (confirm): 'Sure?'; it was dismissed"),
    ("/prompt", "dialog (prompt): 'Name?'; it was dismissed"),
])  # fmt: skip
async def test_dialogs(web: Opens, path: str, note: str) -> None:
    tool = await web(path)
    assert note in (await tool.click(id_of(tool, "Ask"))).text


async def test_a_page_that_does_not_want_to_be_left(web: Opens) -> None:
    tool = await web("/unload")
    await tool.click(id_of(tool, "Stay"))
    left = (await tool.click(id_of(tool, "Leave"))).text
    assert "beforeunload" in left
    assert "page: Home" in left


async def test_a_page_that_never_ends_loading(web: Opens) -> None:
    tool = await web("/")
    for tool.load_s in limits(0.5):
        shown = (await tool.visit("/endless")).text
        assert "had not loaded in time" in shown
        if "The first line" in shown:
            break


async def test_redirects_without_end(web: Opens) -> None:
    tool = await web("/", load_s=1, settle_s=1)
    with pytest.raises(PageFailure, match="TOO_MANY_REDIRECTS"):
        await tool.visit("/around")
    await tool.visit("/reload")
    assert await alive(tool)


async def test_fifty_tabs(web: Opens) -> None:
    tool = await web("/popups", max_tabs=4)
    try:
        shown = (await tool.click(id_of(tool, "Flood"))).text
    except PageFailure as failure:  # a slow machine takes longer for fifty tabs than a click may take
        shown = failure.message
    assert "too many are open" in shown
    assert len((await tool.tabs()).text.splitlines()) <= 5


async def test_a_button_that_is_copied_with_all_that_it_bears(web: Opens) -> None:
    tool = await web("/copies")
    for count in (2, 3, 4):
        assert (await tool.click(id_of(tool, "More"))).text.count('button "More"') == count


async def test_what_is_covered_cannot_be_clicked(web: Opens) -> None:
    tool = await web("/covered")
    with pytest.raises(PageFailure, match="^click: Timeout"):
        await tool.click(id_of(tool, "Buy"))


async def test_downloads_and_files(web: Opens) -> None:
    SENT.clear()
    tool = await web("/file")
    assert "'big.zip' was cancelled" in (await tool.click(id_of(tool, "Download"))).text
    assert 0 < sum(SENT) < 1 << 28  # of 1 << 30
    assert "asked for a file" in (await tool.click(id_of(tool, "Photo"))).text


async def test_a_password(web: Opens) -> None:
    tool = await web("/")
    shown = (await tool.visit("/password")).text
    assert "status 401" in shown or "INVALID_AUTH" in shown


async def test_hosts_that_are_not_allowed(web: Opens) -> None:
    tool = await web("/away")
    assert "tracker.example.org:80 may not be reached" in (await tool.visit("/away")).text
    for path, link in (("/away", "Away"), ("/redirected", "Away")):
        await tool.visit(path)
        assert "example.org:80 may not be reached" in (await tool.click(id_of(tool, link))).text


async def test_a_browser_that_was_killed(web: Opens, address: str) -> None:
    tool = await web("/")
    family = descendants_of(driver_of(tool))
    for pid in family:  # the node process, whose end is Chromium's
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    until(lambda: gone(family))
    with pytest.raises(BrowserLost):
        await tool.visit("/later")
    with suppress(BrowserLost):  # the driver may not have seen it yet; it does so now
        await fresh_open(Web(url=address + "/"))
    await fresh_open(Web(url=address + "/"))


async def test_a_driver_that_was_killed(web: Opens, address: str) -> None:
    tool = await web("/")
    os.kill(driver_of(tool), signal.SIGKILL)
    with pytest.raises(BrowserLost, match="driver is gone"):
        await tool.visit("/later")
    await fresh_open(Web(url=address + "/"))


async def test_a_driver_that_takes_no_request_is_not_asked_again() -> None:
    async def send(data: bytes) -> None:
        raise BrokenPipeError

    killed: list[bool] = []
    driver = Driver(send, lambda: killed.append(True), lambda: "")
    with pytest.raises(BrowserLost, match="driver is gone"):
        await driver.request("context")
    assert (driver.alive, killed) == (False, [True])


async def fresh_open(tool: Web) -> None:
    """The next episode gets a browser."""
    await tool.open(Task.of("t", "Look."), None)
    assert tool.page.title == "Home"
    await tool.close()


def driver_of(tool: Web) -> int:
    """The process id of its driver."""
    assert tool._context is not None
    guard = next(process.pid for one, process in launching._drivers.values() if one is tool._context.driver)
    (driver,) = children_of(guard)
    return driver


def gone(family: Iterable[int]) -> bool:
    """Returns True if none of these processes runs."""
    return not any(Path(f"/proc/{pid}/exe").exists() for pid in family)


async def test_a_first_page_that_cannot_be_opened_is_no_failure_of_the_model() -> None:
    tool = Web(url="http://127.0.0.1:9999/")
    with pytest.raises(BrowserLost, match="cannot be opened"):
        await tool.open(Task.of("t", "Look."), None)
    await tool.close()


async def test_contexts_are_freed(address: str) -> None:
    context = await open_context()
    before = (await context.driver.request("stats"))["value"]
    for _ in range(5):
        async with await open_context() as other:
            await other.do("goto", url=address)
    stats = (await context.driver.request("stats"))["value"]
    assert (stats["contexts"], stats["made"]) == (before["contexts"], before["made"] + 5)
    await context.close()


async def test_an_old_browser_is_replaced(address: str) -> None:
    launch = launching.Launch(browser_contexts=2)
    first, second, third = [await open_context(launch) for _ in range(3)]
    assert len((await third.driver.request("stats"))["value"]["browsers"]) == 2
    await first.close()
    await second.close()
    assert len((await third.driver.request("stats"))["value"]["browsers"]) == 1
    await third.do("goto", url=address)
    await third.close()
    third.driver.end()


HOST = """
import asyncio, sys
from agentrl.tools.builtin.web import launching
async def main():
    await launching.open_context()
    print(next(iter(launching._drivers.values()))[1].pid, flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""


def test_the_driver_and_chromium_end_with_a_host_that_is_killed(tmp_path: Path) -> None:
    with running_program([sys.executable, "-c", HOST]) as host:
        assert host.stdout is not None
        guard = int(host.stdout.readline())
        family = [guard, *descendants_of(guard)]
        assert len(family) > 4
    until(lambda: gone(family))
