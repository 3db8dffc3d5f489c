"""`@playwright/mcp` as a browser: real Node, real Chromium (`make test-playwright`)."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from aiohttp import web

from tests.engines.http_server import serving
from tests.tools.builtin.mcp.test_mcp import opened

FOLDER = Path(__file__).parents[4] / ".mcp"
CHROMIUM = shutil.which("chromium")

pytestmark = pytest.mark.family("playwright")

PAGE = """<title>Shop</title><h1>Tea</h1><button onclick="document.title = 'Bought'">Buy</button>"""


async def test_a_page_is_opened_clicked_and_seen(tmp_path: Path) -> None:
    async def page(path: str, body: object) -> web.Response:
        return web.Response(text=PAGE, content_type="text/html")

    program = f"{FOLDER}/node_modules/.bin/playwright-mcp"
    flags = ["--headless", "--isolated", "--no-sandbox", "--executable-path", str(CHROMIUM), "--output-dir"]
    async with serving(page) as url, opened(command=[program, *flags, str(tmp_path)]) as browser:
        assert {"browser_navigate", "browser_click", "browser_take_screenshot"} <= set(browser.names())
        await browser.text("browser_navigate", url=url)
        tree = await browser.text("browser_snapshot")
        found = re.search(r'button "Buy".*?\[ref=(\w+)\]', tree)
        assert found is not None, tree
        argument = "target" if "target" in str(browser.schema("browser_click")) else "ref"
        await browser.call("browser_click", **{"element": "Buy", argument: found[1]})
        assert "Bought" in await browser.text("browser_snapshot")
        shot = await browser.call("browser_take_screenshot", scale="css", type="png")
        assert [image[:4] for image in shot.images] == [b"\x89PNG"]
