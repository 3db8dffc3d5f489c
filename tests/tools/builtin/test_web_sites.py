"""Sites of this process, and the driver of the browser where there is none. No browser is started."""

from __future__ import annotations

import asyncio
import http.client
import importlib.util
import subprocess
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from agentrl.tools.builtin.web import launching
from agentrl.tools.builtin.web.client import BrowserContext, BrowserLost, Driver
from agentrl.tools.builtin.web.launching import Launch, find_chromium
from agentrl.tools.builtin.web.site import Page, Site, SiteRequest
from agentrl.tools.builtin.web.tool import Web
from agentrl.types.errors import MissingExtra, RecipeError, TaskError
from agentrl.types.task import Task


def shop(request: SiteRequest) -> Page:
    if request.path == "/broken":
        raise KeyError("tea")
    return Page(f"{request.method} {request.query} {request.cookies}")


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    site = Site({"shop.test": shop})
    yield int(site.flag.partition("127.0.0.1:")[2].partition(",")[0])
    site.close()


def got(port: int, path: str, **headers: str) -> tuple[int, str]:
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    link.request("GET", path, headers={"Host": "shop.test", **headers})
    found = link.getresponse()
    status, text = found.status, found.read().decode()
    link.close()
    return status, text


def test_a_site_is_served_under_its_own_name_alone(port: int) -> None:
    assert got(port, "/?a=1&a=2") == (200, "GET {'a': '2'} {}")
    status, text = got(port, "/", Host="other.test")
    assert (status, text) == (403, "other.test is not among the sites that are served here.")


def test_a_bug_of_a_site_is_shown_on_its_page(port: int) -> None:
    assert got(port, "/broken") == (500, "KeyError: 'tea'")


def test_cookies_that_cannot_be_read_are_none(port: int) -> None:
    assert got(port, "/", Cookie="a=1; b=2") == (200, "GET {} {'a': '1', 'b': '2'}")
    assert got(port, "/", Cookie="a/b=1") == (200, "GET {} {}")


# --- the browser ------------------------------------------------------------------------------------------------------


@pytest.fixture
def looked_up() -> Iterator[None]:
    find_chromium.cache_clear()
    yield
    find_chromium.cache_clear()


@pytest.mark.usefixtures("looked_up")
def test_without_playwright_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match="playwright, which drives Chromium"):
        find_chromium()


@pytest.mark.usefixtures("looked_up")
def test_a_browser_that_does_not_run_is_named_with_the_way_to_install_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(words: list[str], **settings: Any) -> None:
        raise OSError("Exec format error")

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(launching, "require_versions", lambda extra: None)
    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(RecipeError, match="/bin/sh does not run: Exec format error") as refused:
        find_chromium("/bin/sh")
    assert refused.value.remedy == launching.INSTALL


async def test_a_driver_that_does_not_start_is_a_lost_browser(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(words: list[str], **settings: Any) -> None:
        raise OSError("no memory")

    monkeypatch.setattr(subprocess, "Popen", start)
    with pytest.raises(BrowserLost, match="the browser driver does not start: no memory"):
        launching.start({})


def a_driver(sent: list[bytes] | None = None) -> Driver:
    async def send(line: bytes) -> None:
        if sent is not None:
            sent.append(line)

    return Driver(send, lambda: None, lambda: "")


async def test_a_driver_ends_when_it_is_idle_and_no_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    later: list[Any] = []

    class Loop:
        def call_later(self, *given: Any) -> None:
            later.append(given)

    closed: list[str] = []
    process = SimpleNamespace(stdin=SimpleNamespace(close=lambda: closed.append("stdin")))
    key: Any = (Loop(), Launch())
    driver = a_driver()
    monkeypatch.setattr(launching, "_drivers", {key: (driver, process)})
    driver.contexts.add(BrowserContext(driver, "c"))
    launching._end_if_idle(key)
    assert [given[0] for given in later] == [launching.IDLE_S], "it is looked at again"
    assert driver.alive
    driver.contexts.clear()
    launching._end_if_idle(key)
    assert (driver.alive, closed, launching._drivers) == (False, ["stdin"], {})
    launching._end_if_idle(key)
    assert closed == ["stdin"], "one that has ended is left alone"


async def test_several_operations_go_in_one_request() -> None:
    driver = a_driver()
    asked: list[Any] = []

    async def request(op: str, **fields: Any) -> dict[str, Any]:
        asked.append((op, fields["ops"]))
        return {"value": [1, 2], "events": [{"kind": "dialog"}]}

    driver.request = request  # type: ignore[method-assign]
    context = BrowserContext(driver, "c")
    assert await context.batch(("click", {"x": 1}), ("type", {"text": "a"})) == [1, 2]
    assert asked == [("batch", [{"op": "click", "x": 1}, {"op": "type", "text": "a"}])]
    assert (context.take_events(), context.take_events()) == ([{"kind": "dialog"}], [])


async def test_a_driver_that_does_not_answer_in_time_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentrl.tools.builtin.web.client.GRACE_S", 0.0)
    driver = a_driver()
    other = asyncio.ensure_future(driver.request("open", timeout_s=60.0))
    with pytest.raises(BrowserLost, match="does not answer: click took longer than 0.001 s"):
        await driver.request("click", timeout_s=0.001)
    with pytest.raises(BrowserLost, match="the browser driver is gone"):
        await other
    assert not driver.alive


async def test_a_context_is_closed_once() -> None:
    sent: list[bytes] = []
    driver = a_driver(sent)
    await BrowserContext(driver, "c").close()
    assert sent == [], "it is not open"


# --- the settings of the tool -----------------------------------------------------------------------------------------


def test_a_browser_runs_here_or_in_the_sandbox() -> None:
    with pytest.raises(RecipeError, match="where is host or sandbox, found 'cloud'"):
        Web(where="cloud")  # type: ignore[arg-type]


@pytest.mark.parametrize("url", ["file:///etc/passwd", "shop.test", "http://"])
async def test_the_page_of_a_task_is_on_the_web(url: str) -> None:
    with pytest.raises(TaskError, match="its page is") as refused:
        await Web(where="sandbox").open(Task.of("t", "x", url=url), None)
    assert (refused.value.place, refused.value.remedy) == ("task 't'", "give http://... or https://...")
