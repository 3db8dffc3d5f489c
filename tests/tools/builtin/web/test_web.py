"""The `web` tool on a local site, in real Chromium."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from agentrl.tools.builtin.web.tool import Web
from agentrl.types.errors import RecipeError, ToolError
from tests.tools.builtin.web.conftest import Opens
from tests.tools.builtin.web.site import SLOW
from tests.waiting import until_async

pytestmark = pytest.mark.slow


def id_of(web: Web, line: str) -> int:
    """The id of the element whose line contains a text."""
    found = next(each for each in web.page.lines if line in each)
    return int(re.findall(r"\[(\d+)\]", found)[0])


async def test_a_form_is_filled_and_sent(web: Opens) -> None:
    tool = await web("/pages/shop.html")
    size = await tool.select(id_of(tool, 'combobox "Size"'), "L")
    assert 'combobox "Size" value="L"' in size.text
    box = id_of(tool, 'textbox "Search"')
    filled = await tool.type(box, "green tea")
    assert f'[{box}] textbox "Search" value="green tea"' in filled.text
    sent = await tool.type(box, "black tea", submit=True)
    assert "shop.html?q=black+tea" in sent.text
    assert sent.ends_reply
    assert not (await tool.press("Shift")).ends_reply  # nothing changed


async def test_ids_stay_while_the_document_does(web: Opens) -> None:
    tool = await web("/pages/shop.html")
    before = {line.strip() for line in tool.page.lines if "[" in line}
    await tool.click(id_of(tool, 'button "More"'))
    after = {line.strip() for line in tool.page.lines if "[" in line}
    assert len(before & after) >= len(before) - 2  # the button is open now, and has the focus


async def test_what_an_action_asked_for_is_waited_for(web: Opens) -> None:
    tool = await web("/later")
    assert tool._context is not None
    SLOW.clear()
    clicking = asyncio.create_task(tool.click(id_of(tool, "Ask")))
    await until_async(lambda: SLOW)
    for _ in range(20):  # a click that waits for nothing is over before the driver has answered so often
        await tool._context.driver.request("stats")
    assert not clicking.done()
    SLOW[0].set_result("the answer")
    assert "the answer" in (await clicking).text


async def test_links_and_back(web: Opens) -> None:
    tool = await web("/")
    assert (await tool.click(id_of(tool, "Later"))).text.startswith("page: later")
    assert (await tool.back()).text.startswith("page: Home")
    with pytest.raises(ToolError, match="no page before"):
        await tool.back()


async def test_addresses(web: Opens) -> None:
    tool = await web("/")
    assert "before" in (await tool.visit("/later")).text
    assert "status 404" in (await tool.visit("/nowhere")).text
    for wrong in ("file:///etc/passwd", "chrome://settings", "javascript:alert(1)"):
        with pytest.raises(ToolError, match="no address"):
            await tool.visit(wrong)


async def test_a_long_page_is_cut_and_scrolled(web: Opens) -> None:
    tool = await web("/cut", max_chars=1000)
    first = tool.page.shown(1000)
    assert "Line 0 " in first
    assert "lines below: scroll down]" in first
    assert "At the end" not in first
    second = (await tool.scroll()).text
    assert "lines above" in second
    assert "Line 0 " not in second
    assert "Line 0 " in (await tool.scroll("up")).text
    found = await tool.find("at the END")
    assert found.startswith("1 of 401 lines:\n1. ")
    assert '"At the end"' in found.partition("lines above: scroll up]")[2], "the page is shown from there"
    found = await tool.find("long page", hit=11)
    assert found.startswith("400 of 401 lines:\n11. ")
    assert "[... 380 more: hit=21]" in found
    assert "Line 10 " in found.partition("lines above: scroll up]")[2]
    with pytest.raises(ToolError, match="in 400 lines of this page; there is no hit 401"):
        await tool.find("long page", hit=401)
    assert "Line 399" in await tool.extract(start=9000)


async def test_two_tabs(web: Opens) -> None:
    tool = await web("/popup")
    opened = await tool.click(id_of(tool, "More"))
    assert opened.text.startswith("note: tab 1 was opened")
    assert "url: " + tool.page.url in opened.text
    assert tool.page.title == "Home"
    assert "tab 1 (shown): Home" in (await tool.tabs()).text
    assert "page: popup" in (await tool.tabs(show=0)).text
    assert "tab 1" not in (await tool.tabs(close=1)).text
    with pytest.raises(ToolError, match="no tab 5"):
        await tool.tabs(show=5)


async def test_what_cannot_be_done_is_told(web: Opens) -> None:
    tool = await web("/pages/shop.html")
    for wrong in (
        tool.click(999),
        tool.select(id_of(tool, "Size"), "XXL"),
        tool.press("Nothing"),
        tool.find("nowhere"),
    ):
        with pytest.raises(ToolError) as caught:
            await wrong
        assert not caught.value.ends_reply


async def test_equal_pages_are_one_state(web: Opens) -> None:
    one, two = await web("/pages/shop.html"), await web("/")
    await two.visit("/pages/shop.html")
    assert one.state_key() == two.state_key()
    await two.type(id_of(two, 'textbox "Search"'), "x")
    assert one.state_key() != two.state_key()


async def test_screenshots(web: Opens) -> None:
    tool = await web("/", viewport=(320, 240), screenshots=True)
    for shown in (await tool.screenshot(), await tool.visit("/later")):
        assert shown.images[0][:4] == b"\x89PNG"


async def test_where_an_action_was_is_told_if_the_page_was_shown_as_an_image(web: Opens) -> None:
    tool = await web("/pages/forms.html", screenshots=True)
    await tool.visit("/pages/forms.html")
    box = next(each for each in await tool._do("elements") if each["role"] == "textbox")
    left, top, width, height = box["box"]
    (point,) = (await tool.type(box["id"], "tea")).points
    assert point == pytest.approx((left + width / 2, top + height / 2), abs=1)
    await tool.find("e")  # the page as text: its last image is no longer what the model saw last
    assert (await tool.type(box["id"], "milk")).points == ()
    last = [each["id"] for each in await tool._do("elements") if not each["visible"]]
    if last:
        assert (await tool.click(last[-1])).points == ()


def test_settings_are_checked() -> None:
    for wrong in (
        {"actions": ["clik"]},
        {"chromium": "/no/where"},
        {"max_chars": 0},
        {"observation": "pixels"},
        {"viewport": (0, 1)},
    ):
        with pytest.raises(RecipeError):
            Web(**wrong)  # type: ignore[arg-type]
    with pytest.raises(RecipeError, match="is no Chromium"):
        Web(chromium="/bin/true")


def test_only_some_actions_are_offered() -> None:
    from agentrl.tools.methods import methods_of

    assert [each.name for each in methods_of(Web(actions=["click", "open"]))] == ["open", "click"]


GOLDEN = Path(__file__).parents[3] / "golden" / "browser"


@pytest.mark.parametrize("name", sorted(path.stem for path in (Path(__file__).parent / "pages").glob("*.html")))
async def test_the_text_form_is_fixed(web: Opens, address: str, name: str) -> None:
    tool = await web(f"/pages/{name}.html", max_chars=100_000)
    tree = tool.page.shown(100_000).replace(address, "http://site")
    text = await tool.extract()
    assert tree + "\n\n----\n\n" + text + "\n" == (GOLDEN / f"{name}.txt").read_text()


def test_the_doctor_looks_for_chromium(monkeypatch: pytest.MonkeyPatch) -> None:
    from agentrl.commands.doctor import _chromium
    from agentrl.tools.builtin.web.launching import find_chromium

    assert _chromium().ok
    find_chromium.cache_clear()
    monkeypatch.setenv("PATH", "/nowhere")
    found = _chromium()
    find_chromium.cache_clear()
    assert (found.ok, found.found) == (False, "there is no Chromium on this machine")
    assert "apt-get install" in found.fix
