"""The `gui` tool on a page in a real Chromium."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio

from agentrl.tools.builtin.gui.gui import Gui
from agentrl.tools.builtin.gui.page import PageScreen
from agentrl.tools.builtin.gui.screen import ScreenLost
from agentrl.tools.builtin.web.client import BrowserContext, BrowserLost, PageFailure
from agentrl.tools.builtin.web.site import Page, Site, SiteRequest
from agentrl.tools.methods import method
from agentrl.types.errors import RecipeError, TaskError, ToolError
from agentrl.types.parts.image import image_info
from agentrl.types.task import Task
from tests.tools.builtin.gui.desks import act
from tests.tools.builtin.web.conftest import chromium, kept  # noqa: F401 - skips without it, and keeps it
from tests.tools.builtin.web.site import site as server

pytestmark = pytest.mark.slow

HTML = """<title>Notes</title>
<style>body {margin: 0; height: 3000px} * {position: absolute; box-sizing: border-box}</style>
<button style="left: 100px; top: 50px; width: 80px; height: 20px" onclick="note.value += 'clicked '">Press</button>
<input id=note aria-label=Note style="left: 100px; top: 100px; width: 300px; height: 20px">
<textarea id=long aria-label=Long style="left: 100px; top: 140px; width: 300px; height: 60px"></textarea>
<input type=checkbox aria-label=Sure style="margin: 0; left: 100px; top: 220px; width: 20px; height: 20px">
<select aria-label=Colours multiple style="left: 200px; top: 220px"><option selected>red<option selected>blue</select>
<input type=range aria-label=Volume min=0 max=100 value=0 style="margin: 0; left: 100px; top: 320px; width: 200px">
<a href="/other" style="left: 100px; top: 350px">Other page</a>
<button style="left: 100px; top: 1500px">Far below</button>
<script>for (const kind of ['dblclick', 'contextmenu'])
  addEventListener(kind, event => { document.title = kind; event.preventDefault() })</script>"""


def answer(request: SiteRequest) -> Page:
    return Page("<title>Other</title><button>Back home</button>" if request.path == "/other" else HTML)


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    site = Site({"notes.test": answer})
    yield site
    site.close()


async def opened(site: Site, **settings: Any) -> Gui:
    gui = Gui(
        page={"url": "http://notes.test/", "allow": ["*"], "flags": [site.flag]},
        **{"shows": "both", "settle_s": 60.0, "start_s": 200.0, **settings},
    )
    await gui.open(Task.of("t", "Do it."), None)
    return gui


@pytest_asyncio.fixture(loop_scope="session")
async def gui(site: Site) -> AsyncIterator[Gui]:
    gui = await opened(site)
    yield gui
    await gui.close()


def number(gui: Gui, name: str) -> int:
    return next(k for k, each in enumerate(gui._listed, 1) if each.name == name)


async def title(gui: Gui) -> str:
    return str(await gui._screen._context.evaluate("document.title"))  # type: ignore[union-attr]


LIST = """\
[1] button "Press" [100, 50, 180, 70]
[2] textbox "Note" [100, 100, 400, 120]
[3] textbox "Long" [100, 140, 400, 200]
[4] checkbox "Sure" [100, 220, 120, 240]
"""


async def test_the_list_and_the_image(gui: Gui) -> None:
    (message,) = await gui.opening()
    text, image = message["content"][0], message["content"][1]["image"]
    assert text.startswith("The screen (1024 x 768):\n" + LIST)
    assert "Far below" not in text, "what is outside the screen is not listed"
    assert (image_info(image).width, image_info(image).height) == (1024, 768)
    assert '[5] listbox "Colours" options="red","blue"' in text
    assert ': \'"red","blue"\'' in text


async def test_clicks_keys_and_typing(gui: Gui) -> None:
    clicked = await act(gui, "left_click", coordinate=[140, 60])
    assert clicked.points == ((140.0, 60.0),)
    assert ": 'clicked '" in clicked.text
    await act(gui, "left_click", element=number(gui, "Note"))
    assert ": 'clicked äß漢!'" in (await act(gui, "type", text="äß漢!")).text
    await act(gui, "key", text="ctrl+a BackSpace")
    assert ": 'new'" in (await act(gui, "type", text="new")).text
    await act(gui, "key", text="Tab")
    assert ": 'one\\ntwo+'" in (await act(gui, "type", text="one\ntwo+")).text
    assert 'checkbox "Sure" checked' in (await act(gui, "left_click", coordinate=[110, 230])).text
    assert ": '1'" in (await act(gui, "key", text="shift+Tab ctrl+a 1")).text


async def test_the_mouse(gui: Gui) -> None:
    await act(gui, "double_click", coordinate=[700, 500])
    assert await title(gui) == "dblclick"
    await act(gui, "right_click", coordinate=[700, 500])
    assert await title(gui) == "contextmenu"
    dragged = await act(gui, "left_click_drag", start_coordinate=[108, 328], coordinate=[200, 328])
    assert dragged.points == ((108.0, 328.0), (200.0, 328.0))
    volume = next(each for each in gui._listed if each.name == "Volume")
    assert 40 <= int(volume.text) <= 60
    down = await act(gui, "scroll", coordinate=[700, 500], scroll_direction="down", scroll_amount=10)
    assert down.points == ((700.0, 500.0),)
    assert "Far below" in down.text
    assert '"Press"' not in down.text
    assert '"Press"' in (await act(gui, "scroll", scroll_direction="up", scroll_amount=10)).text


async def test_scaled_coordinates(site: Site) -> None:
    for settings, coordinate in (
        ({"shown": [512, 384]}, [70, 30]),
        ({"coordinates": "thousandths"}, [137, 78]),
        ({"coordinates": "fractions"}, [0.137, 0.078]),
    ):
        gui = await opened(site, **settings)
        result = await act(gui, "left_click", coordinate=coordinate)
        assert ": 'clicked '" in result.text
        shown = image_info(result.images[0])
        assert (shown.width, shown.height) == tuple(settings.get("shown", (1024, 768)))
        assert abs(result.points[0][0] / shown.width - 0.137) < 0.002
        await gui.close()


async def test_the_form_of_gui_r1(site: Site) -> None:
    gui = await opened(site, actions="gui_r1", shows="elements")
    tool = method(gui, *gui.tools())
    clicked = await tool.call({"action": "click", "point": [140, 60]})
    assert (": 'clicked '" in clicked.text, clicked.points) == (True, ((140.0, 60.0),))
    typed = await tool.call({"action": "type", "point": [200, 150], "input_text": "one"})
    assert ("Long" in typed.text, typed.points) == (True, ((200.0, 150.0),))
    await tool.call({"action": "enter"})
    assert ": 'one\\ntwo'" in (await tool.call({"action": "type", "input_text": "two"})).text
    with pytest.raises(ToolError, match="scroll needs input_text"):
        await tool.call({"action": "scroll"})
    with pytest.raises(ToolError, match="type needs the argument 'input_text'"):
        await tool.call({"action": "type", "point": [200, 150]})
    with pytest.raises(ToolError, match="click needs the argument 'point'"):
        await tool.call({"action": "click"})
    await tool.call({"action": "scroll", "input_text": "down"})
    assert await gui._screen._context.evaluate("scrollY") == 300  # type: ignore[union-attr]
    ended = await tool.call({"action": "complete", "input_text": "yes"})
    assert (ended.done, ended.answer) == (True, "yes")
    await gui.close()


async def test_navigation(gui: Gui) -> None:
    await gui.opening()
    first = gui.state_key()
    shown = await act(gui, "left_click", element=number(gui, "Other page"))
    assert shown.text.startswith('[1] button "Back home" [')
    assert gui.state_key() != first
    back = await act(gui, "key", text="alt+Left")
    assert LIST in back.text


async def test_other_hosts_than_that_of_the_page_are_not_reached() -> None:
    async with server() as address:
        gui = Gui(page=address + "{path}", shows="elements")
        await gui.open(Task.of("t", "x", path="/popup"), None)
        await gui.opening()
        assert gui._listed
        await gui._screen._context.evaluate("() => { location.href = 'http://example.test/' }")  # type: ignore[union-attr]
        assert "example.test" in (await act(gui, "screenshot")).text
        await gui.close()


async def test_wrong_arguments_are_observations(gui: Gui) -> None:
    with pytest.raises(ToolError, match="there is no key"):
        await act(gui, "key", text="ctrl+Retrun")
    with pytest.raises(ToolError, match="outside the screen"):
        await act(gui, "left_click", coordinate=[1024, 5])
    assert (await act(gui, "screenshot")).images


async def test_a_page_that_cannot_be_opened_is_infrastructure(site: Site) -> None:
    gui = Gui(page="http://127.0.0.1:9/")
    with pytest.raises(ScreenLost, match="cannot be opened"):
        await gui.open(Task.of("t", "x"), None)
    gui = Gui(page="{address}")
    with pytest.raises(TaskError, match="no field for page"):
        await gui.open(Task.of("t", "x"), None)


async def test_a_page_that_is_lost_while_it_opens_is_closed(
    gui: Gui, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = gui._screen._context.driver  # type: ignore[union-attr]
    before = await driver.request("stats")

    async def lost(self: PageScreen) -> str:
        raise PageFailure("page", "it moved")

    monkeypatch.setattr(PageScreen, "settle", lost)
    with pytest.raises(ScreenLost, match="cannot be opened: it moved"):
        await opened(site)
    assert (await driver.request("stats"))["value"]["contexts"] == before["value"]["contexts"]


async def test_a_screenshot_of_a_page_that_crashed_is_infrastructure(gui: Gui, monkeypatch: pytest.MonkeyPatch) -> None:
    async def crashed(self: BrowserContext, op: str, **fields: Any) -> Any:
        raise PageFailure("crashed", "the page crashed")

    monkeypatch.setattr(BrowserContext, "do", crashed)
    with pytest.raises(ScreenLost, match="crashed"):
        await gui._screen.screenshot()  # type: ignore[union-attr]


def test_wrong_settings() -> None:
    for settings, said in (
        ({}, "either app or page"),
        ({"app": "mousepad", "page": "http://a.test/"}, "either app or page"),
        ({"page": "http://a.test/", "where": "host"}, "where is for programs"),
        ({"page": {"ulr": "http://a.test/"}}, "no key 'ulr'"),
        ({"page": {"allow": ["*"]}}, "page has no url"),
        ({"page": {"url": "http://a.test/", "dialogs": "x"}}, "dialogs is 'x'"),
        ({"page": {"url": "http://a.test/", "allow": "a.test"}}, "page.allow is 'a.test'"),
        ({"page": {"url": "http://a.test/", "flags": ["--x", 1]}}, r"page.flags\[1\] is 1"),
    ):
        with pytest.raises(RecipeError, match=said):
            Gui(**settings)  # type: ignore[arg-type]


async def test_a_browser_that_is_killed_is_infrastructure(gui: Gui) -> None:
    from agentrl.tools.builtin.web import launching

    driver = gui._screen._context.driver  # type: ignore[union-attr]
    pid = next(process.pid for one, process in launching._drivers.values() if one is driver)
    assert subprocess.run(["pgrep", "-P", str(pid)], check=False, capture_output=True).stdout
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(BrowserLost):
        await act(gui, "screenshot")
