"""The `http` tool: what a model is shown of pages, and what servers cannot do to it."""

from __future__ import annotations

import asyncio
import errno
import gzip
import resource
import ssl
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from agentrl.tools.builtin.web import fetch
from agentrl.tools.builtin.web.fetch import HttpSettings
from agentrl.tools.builtin.web.http import Http
from agentrl.types.errors import InfraError, MissingExtra, RecipeError, ToolError
from agentrl.types.http.hosts import HostList
from tests.engines.http_server import serving
from tests.rollouts.world import make_parts
from tests.tools.builtin.http.servers import answer, endless, http, read_here, saying, talking

ARTICLE = """<!doctype html><html><head><title>Tea  times</title></head><body>
<nav><a href="/">Home</a></nav>
<main><h1>Tea</h1><p>Tea is drunk at five. See <a href="../cups?size=2">cups</a> and <a href="#more">more</a>.</p>
<p id="more">Five is five o'clock in the afternoon, and not in the morning, whatever anyone may say.</p>
<table><tr><td>Assam</td><td>4 min</td></tr></table></main></body></html>"""


LONG = ARTICLE.replace("<p id", f"<p>{'Tea is picked, dried and poured. ' * 40}</p><p id")


@pytest.fixture(autouse=True)
def _read_here(monkeypatch: pytest.MonkeyPatch) -> None:
    read_here(monkeypatch)


async def refused(get: Any, url: str, **arguments: Any) -> str:
    with pytest.raises(ToolError) as error:
        await get(url, **arguments)
    return str(error.value)


@pytest.mark.parametrize("html", [ARTICLE, LONG])
async def test_a_page_is_its_text_with_absolute_links(html: str) -> None:
    async def page(path: str, body: Any) -> web.Response:
        return web.Response(text=html, content_type="text/html")

    async with serving(page) as url:
        port = int(url.rpartition(":")[2])
        async with http(port) as get:
            text = await get(f"{url}/drinks/hot/tea")
        async with http(port, links=False) as get:
            plain = await get(f"{url}/drinks/hot/tea")
    head, _, rest = text.partition("\n\n")
    assert head == f"[{url}/drinks/hot/tea Tea times]"
    assert f"[cups]({url}/drinks/cups?size=2)" in rest
    assert "more" in rest
    assert "#more" not in rest
    assert "Assam" in rest
    assert "4 min" in rest
    assert "](http" not in plain
    assert "cups" in plain
    assert ("Home" in rest) == (html == ARTICLE), "of a long page, the main text"


@pytest.mark.parametrize(
    ("body", "kind", "shown"),
    [
        (b'{"a": [1, 2]}', "application/json", '{"a": [1, 2]}'),
        (b"plain <b>text</b>", "text/plain; charset=utf-8", "plain <b>text</b>"),
        (b"a: 1", "application/octet-stream", "a: 1"),
        (b"<html><body><p>Hi</p></body></html>", "", "Hi"),
        ("Käse".encode("latin-1"), "text/plain; charset=utf-8", "Käse"),
        ("Käse".encode(), "text/plain; charset=no-such-thing", "Käse"),
        ("Käse".encode(), "text/plain; charset=rot13", "Käse"),
        ("Käse".encode("utf-16"), "text/plain", "Käse"),
        ("<meta charset=cp1251><p>Чай</p>".encode("cp1251"), "text/html", "Чай"),
        ("<meta charset=utf-8><p>Чай</p>".encode(), "text/html; charset=ascii", "Чай"),
        (b"", "text/html", "[the page has no text; a browser might show some]"),
        (b"<html><body><script>draw()</script></body></html>", "text/html", "[the page has no text; a browser"),
        (b"<div>" * 20_000 + b"deep" + b"</div>" * 20_000, "text/html", ""),
    ],
)
async def test_what_is_shown_of_a_body(body: bytes, kind: str, shown: str) -> None:
    headers = [f"Content-Type: {kind}"] if kind else []
    async with talking(saying(answer(body, *headers))) as port, http(port) as get:
        assert shown in await get(f"http://127.0.0.1:{port}/x")


@pytest.mark.parametrize(
    ("body", "kind", "said"),
    [
        (b"%PDF-1.7 ...", "application/octet-stream", "is a PDF (12 bytes), not a page"),
        (b"\x89PNG\0" * 1000, "image/png", "is image/png (5 kB), not text"),
        (b"PK\x03\x04\xff\xfe", "application/zip", "is application/zip (6 bytes), not text"),
        (b"\xff\xfe\xfd\0", "text/plain", ""),
        (b"\0\1\2", "", "is of no known type (3 bytes), not text"),
    ],
)
async def test_what_is_no_text_is_named(body: bytes, kind: str, said: str) -> None:
    headers = [f"Content-Type: {kind}"] if kind else []
    async with talking(saying(answer(body, *headers))) as port, http(port) as get:
        if said:
            assert said in await refused(get, f"http://127.0.0.1:{port}/x")
        else:  # UTF-16 by its mark
            await get(f"http://127.0.0.1:{port}/x")


async def test_reading_on_fetches_once() -> None:
    asked = []

    async def page(path: str, body: Any) -> web.Response:
        asked.append(path)
        return web.Response(text="".join(f"{n:04}." for n in range(100)))

    async with serving(page) as url, http(int(url.rpartition(":")[2]), chars=200) as get:
        first = await get(f"{url}/n")
        assert first.endswith("0039.\n\n[300 more characters: offset=200]")
        assert (await get(f"{url}/n", offset=200)).startswith(f"[{url}/n from character 200]\n\n0040.")
        assert (await get(f"{url}/n", offset=400)).endswith("0099.")
        assert "has 500 characters" in await refused(get, f"{url}/n", offset=500)
        assert "greater than or equal to 0" in await refused(get, f"{url}/n", offset=-1)
    assert asked == ["/n"]


HTML = "Content-Type: text/html"
PLAIN = "Content-Type: text/plain"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n"
BOMB = gzip.compress(bytes(50_000_000))


@pytest.mark.parametrize(
    ("talk", "said"),
    [
        (endless(HEAD, b"x", wait=0.05), "no complete answer from 127.0.0.1 within 0.5 s"),
        (endless(b"HTTP/1.1 200 OK\r\n", b"x", wait=0.05), "no complete answer"),
        (endless(b"HTTP/1.1 200 OK\r\n", b"a: " + b"x" * 1000 + b"\r\n"), "headers are too large"),
        (saying(b"HTTP/1.1 200 OK\r\na: " + b"x" * 100_000 + b"\r\n\r\n"), "headers are too large"),
        (saying(b"SSH-2.0-OpenSSH_9.2\r\n"), "not HTTP"),
        (saying(b""), "closed the connection without an answer"),
        (saying(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort"), "broke off"),
        (saying(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"), "not HTTP"),
        (saying(answer(b"not gzip at all", "Content-Encoding: gzip")), "packed and damaged"),
        (saying(answer(b"x", "Content-Encoding: br")), "packed as 'br'"),
        (saying(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"), "HTTP 404 Not Found"),
        (saying(b"HTTP/1.1 302 Found\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n"), "more than 5 redirects"),
        (saying(b"HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\n\r\n"), "is no URL of the web"),
        (saying(b"HTTP/1.1 302 Found\r\nLocation: http://[bad\r\n\r\n"), ""),
    ],
)  # fmt: skip
async def test_a_server_that_misbehaves_is_an_observation(talk: Any, said: str) -> None:
    limit = {"timeout_s": 0.5} if "complete answer" in said else {}
    async with talking(talk) as port, http(port, **limit) as get:
        assert said in await refused(get, f"http://127.0.0.1:{port}/x")


@pytest.mark.parametrize(
    ("talk", "first"),
    [
        (endless(HEAD, b"tea " * 10_000), "tea tea"),
        (saying(answer(BOMB, "Content-Encoding: gzip", PLAIN)), ""),
        (saying(answer(gzip.compress(b"tea " * 9_000_000), "Content-Encoding: gzip", PLAIN)), "tea tea"),
        (saying(answer(zlib.compress(b"tea " * 9_000_000), "Content-Encoding: deflate", PLAIN)), "tea tea"),
        (saying(answer(zlib.compress(b"tea " * 9_000_000)[2:], "Content-Encoding: deflate", PLAIN)), "tea tea"),
    ],
)
async def test_what_never_ends_is_read_up_to_the_bound(talk: Any, first: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    async with talking(talk) as port, http(port, max_bytes=1_000_000, chars=20) as get:
        url = f"http://127.0.0.1:{port}/x"
        if not first:  # zeros are no text
            assert "(more than 1 MB), not text" in await refused(get, url)
            return
        text = await get(url)
        assert text.startswith(f"[{url}]\n\n{first}")
        assert "[999980 more characters: offset=20]" in text
        assert "longer than what was read" in await get(url, offset=999_990)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000, "kB"


async def test_a_character_that_the_bound_cuts_is_left_out() -> None:
    body = b"ab" + "ä".encode() * 10
    async with talking(saying(answer(body, PLAIN))) as port, http(port, max_bytes=5) as get:
        assert "abä\n" in await get(f"http://127.0.0.1:{port}/x")


async def test_redirects_lead_on_with_the_cookies_that_they_set() -> None:
    async def page(path: str, body: Any) -> web.Response:
        return web.Response(status=301, headers={"Location": "../b/end"}) if path == "/a/x" else web.Response(text=path)

    async with serving(page) as url, http(int(url.rpartition(":")[2])) as get:
        assert await get(f"{url}/a/x") == f"[{url}/b/end]\n\n/b/end"


async def test_cookies_are_kept_and_few() -> None:
    heads: list[bytes] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        cookies = [f"Set-Cookie: c{number}=v; Path=/" for number in range(len(heads) * 90)]
        writer.write(answer(b"tea", PLAIN, "Set-Cookie: large=" + "x" * 5000, *cookies))
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with http(port) as get, http(port) as other:
        for path in "abc":
            await get(f"http://127.0.0.1:{port}/{path}")
        await other(f"http://127.0.0.1:{port}/")
    server.close()
    assert [head.lower().count(b"=v") for head in heads] == [0, 90, 100, 0]
    assert not any(b"large" in head for head in heads)


async def test_what_a_server_says_of_itself_is_short() -> None:
    long = b"x" * 50_000
    for raw, said in (
        (b"HTTP/1.1 404 " + long + b"\r\nContent-Length: 0\r\n\r\n", "HTTP 404 xxx"),
        (b"HTTP/1.1 302 F\r\nLocation: /" + long + b"\r\nContent-Length: 0\r\n\r\n", "more than 8000 characters"),
        (b"HTTP/1.1 302 F\r\nLocation: http://" + long + b"/\r\nContent-Length: 0\r\n\r\n", "is no URL"),
        (b"HTTP/1.1 200 F\r\n" + long + b"\r\n\r\n", "is not HTTP"),
    ):
        async with talking(saying(raw)) as port, http(port) as get:
            told = await refused(get, f"http://127.0.0.1:{port}/")
            assert said in told
            assert len(told) < 500, told
            assert "is no URL" in await refused(get, f"http://127.0.0.1:{port}/\ud83d")


async def test_nobody_is_reached_who_is_not_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    async def page(path: str, body: Any) -> web.Response:
        asked.append(path)
        return web.Response(status=302, headers={"Location": f"http://localhost:{port}/inside"})

    async with serving(page) as url:
        port = int(url.rpartition(":")[2])
        async with http(allow=None) as get:
            for host in ("127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "169.254.169.254", "10.0.0.1"):
                assert "not a public address" in await refused(get, f"http://{host}:{port}/")
            for host in ("2130706433", "127.1", "0177.1"):
                assert "is no host" in await refused(get, f"http://{host}:{port}/")
            assert "Invalid IPv4 address: '0177.0.0.1'" in await refused(get, f"http://0177.0.0.1:{port}/")
            assert "not a public address" in await refused(get, f"http://0x7f.1:{port}/")
            assert "is no URL of the web" in await refused(get, "file:///etc/passwd")
            assert "is no URL of the web" in await refused(get, "tea")
            assert "is no URL" in await refused(get, "http://[bad/")
        assert asked == []
        async with http(allow=["example.org", f"localhost:{port}"]) as get:
            assert "is not among the hosts that may be reached: example.org" in await refused(get, f"{url}/")
            assert "is at" in await refused(get, f"http://localhost:{port}/"), "the name is listed, its address is not"
        assert asked == []
        async with http(allow=[f"127.0.0.1:{port}"]) as get:
            assert f"localhost:{port} is not among" in await refused(get, f"{url}/first")
        assert asked == ["/first"], "a redirect is checked as the first address is"


def test_the_list_is_that_of_sandboxes() -> None:
    hosts = HostList(["example.org", "*.test", "10.1.2.3:8080"])
    for host, port in (("example.org", 443), ("EXAMPLE.org.", 80), ("a.b.test", 80), ("10.1.2.3", 8080)):
        hosts.check(host, port)
    for host, port in (("example.org", 8080), ("www.example.org", 80), ("test", 80), ("10.1.2.3", 80)):
        with pytest.raises(ToolError):
            hosts.check(host, port)
    assert hosts.check_addresses("a.test", 8080, ["10.1.2.3", "10.1.2.4", "93.184.216.34"]) == [
        "10.1.2.3",
        "93.184.216.34",
    ]


@pytest.mark.slow
async def test_tls_that_cannot_be_trusted_is_an_observation(tmp_path: Path) -> None:
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "key.pem", "-out", "cert.pem"]
    subprocess.run([*make, "-days", "1", "-subj", "/CN=localhost"], cwd=tmp_path, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    async with talking(saying(answer(b"secret")), ssl=context) as port, http(port) as get:
        assert "its certificate is not valid" in await refused(get, f"https://127.0.0.1:{port}/")
    async with talking(saying(answer(b"plain")), until=b"\x16") as port, http(port) as get:
        assert "TLS failed" in await refused(get, f"https://127.0.0.1:{port}/")


async def test_no_server_and_no_host_are_observations(monkeypatch: pytest.MonkeyPatch) -> None:
    async with talking(saying(b"")) as port:
        pass
    async with http(port) as get:
        assert "no connection" in await refused(get, f"http://127.0.0.1:{port}/")
    async with http(allow=["no-such-host.invalid"]) as get:
        assert "there is no host of this name" in await refused(get, "http://no-such-host.invalid/")


@pytest.mark.parametrize("code", fetch.LOCAL)
async def test_a_machine_without_sockets_is_a_failure(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_socket(*args: Any, **more: Any) -> Any:
        raise OSError(code, "there is none")

    async with http(9) as get:
        monkeypatch.setattr("socket.socket", no_socket)
        with pytest.raises(InfraError, match=errno.errorcode[code]):
            await get("http://127.0.0.1:9/")


async def test_states_are_equal_if_the_same_was_read() -> None:
    async with talking(saying(answer(b"tea", PLAIN))) as port:
        tools = [Http(HttpSettings(allow=(f"127.0.0.1:{port}",))) for _ in range(2)]
        urls = [f"http://127.0.0.1:{port}/{name}" for name in "ab"]
        for tool, order in zip(tools, (urls, urls[::-1]), strict=True):
            before = tool.state_key()
            for url in order:
                await tool.get(url)
            assert tool.state_key() != before
            await tool.close()
        assert tools[0].state_key() == tools[1].state_key()


def test_settings_are_checked_with_the_recipe(tmp_path: Path) -> None:
    make_parts(tmp_path, tools=[{"use": "http", "allow": ["example.org", "127.0.0.1:8000"]}])
    for wrong in ({"allow": ["http://example.org/"]}, {"timeout_s": 0}, {"chars": 0}, {"hosts": []}):
        with pytest.raises(RecipeError, match=next(iter(wrong))):
            make_parts(tmp_path, tools=[{"use": "http", **wrong}])


def test_a_missing_package_is_named_with_the_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trafilatura", None)
    with pytest.raises(MissingExtra, match=r"pip install 'agentrl-framework\[http\]'"):
        make_parts(tmp_path, tools=["http"])


async def test_calls_of_one_reply_run_side_by_side() -> None:
    both = asyncio.Barrier(2)

    async def page(path: str, body: Any) -> web.Response:
        await both.wait()
        return web.Response(text=path)

    async with serving(page) as url, http(int(url.rpartition(":")[2])) as get:
        texts = await asyncio.gather(get(f"{url}/a"), get(f"{url}/b"))
    assert [text[-2:] for text in texts] == ["/a", "/b"]
