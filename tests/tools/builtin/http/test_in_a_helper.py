"""What servers send is read in helper processes, and what a page costs and shows is bounded in every part."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

from agentrl.tools.builtin.web import http as tool
from agentrl.tools.builtin.web import readable as page
from agentrl.types.errors import ToolError
from tests.tools.builtin.http.servers import answer, http, saying, talking

pytestmark = pytest.mark.slow

HTML = "Content-Type: text/html"
PLAIN = b"<html><body><p>We open at nine.</p></body></html>"


async def tried(get: Any, url: str) -> str:
    try:
        return str(await get(url))
    except ToolError as error:
        return str(error)


_ATTRIBUTES = b" ".join(b"a%d=1" % k for k in range(400_000))
_ENTITIES = b'<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa">' + b'<!ENTITY b "&a;&a;&a;&a;">' * 1000 + b"]><html>&b;" * 9
PAGES: dict[str, tuple[bytes, str]] = {
    "attributes": (b"<html><body><p " + _ATTRIBUTES + b">x</p></body></html>", HTML),
    "elements": (b"<html><body>" + b"<p><b><i>x" * 500_000, HTML),
    "nesting": (b"<html><body>" + b"<div>" * 1_000_000, HTML),
    "tables": (b"<html><body>" + b"<table><tr><td>" * 300_000, HTML),
    "entities": (_ENTITIES, HTML),
    "links": (b"<html><body>" + b'<a href="//[x">y</a>' * 200_000, HTML),
    "a title": (b"<html><title>" + b"t " * 2_000_000 + b"</title><body>text</body></html>", HTML),
    "a code": (b"xn--" + b"a-b" * 1_500_000, "Content-Type: text/plain; charset=punycode"),
    "no end": (b"<!-- -->" * 600 + b"<" * 4_000_000, "X: y"),
}  # fmt: skip


async def test_a_page_that_takes_much_is_ended_or_cut_and_neighbours_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool, "PARSE_S", 3.0)
    async with talking(saying(answer(PLAIN, HTML))) as near, http(near) as honest:
        for name, (body, kind) in PAGES.items():
            async with talking(saying(answer(body, kind))) as port, http(port, chars=1000) as get:
                said, here = await asyncio.gather(
                    tried(get, f"http://127.0.0.1:{port}/"), honest(f"http://127.0.0.1:{near}/{name[:2]}")
                )
            assert len(said) < 4000, (name, len(said))
            assert "We open at nine." in here


async def test_nothing_of_a_server_is_read_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "text_of_html", lambda *_, **__: pytest.fail("a page is read in this process"))
    monkeypatch.setattr(page, "_decoded", lambda *_, **__: pytest.fail("a text is decoded in this process"))
    async with talking(saying(answer(PLAIN, HTML))) as port, http(port) as get:
        assert "We open at nine." in await get(f"http://127.0.0.1:{port}/")
    async with (
        talking(saying(answer(b"h\xe9", "Content-Type: text/plain; charset=latin-1"))) as port,
        http(port) as get,
    ):
        assert "hé" in await get(f"http://127.0.0.1:{port}/")
    assert "lxml.html" not in sys.modules or tool._HELPER._alive


async def test_a_title_and_an_address_are_cut() -> None:
    body = b"<html><title>" + b"t" * 4_000_000 + b"</title><body>text</body></html>"
    async with talking(saying(answer(body, HTML))) as port, http(port) as get:
        url = f"http://127.0.0.1:{port}/{'u' * 5000}"
        shown = await get(url)
        assert f"{'t' * 200}]" not in shown  # the address alone fills the line
        assert len(shown) < 2100
        assert f"{'t' * 200}]" in await get(f"http://127.0.0.1:{port}/")
        assert len(await tried(get, f"http://127.0.0.1:{port}/{'v' * 7000}")) < 2100
