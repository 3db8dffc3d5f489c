"""A local site with pages that behave, and pages that do not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web

SENT: list[int] = []
"""Bytes of the big download that went out."""
SLOW: list[asyncio.Future[str]] = []
"""The questions to `/slow`; each is answered when its future is."""

PAGES = Path(__file__).parent / "pages"

HAZARDS = {
    "hang": "<button onclick='for (;;) {}'>Hang</button>",
    "alert": "<button onclick='alert(\"Sold out\")'>Ask</button>",
    "confirm": "<button onclick='document.title = confirm(\"Sure?\")'>Ask</button>",
    "prompt": "<button onclick='document.title = prompt(\"Name?\")'>Ask</button>",
    "unload": "<script>onbeforeunload = e => e.preventDefault()</script><a href='/'>Leave</a><button>Stay</button>",
    "popups": "<button onclick='for (let k = 0; k < 50; k++) window.open(\"/?\" + k)'>Flood</button>",
    "popup": "<button onclick='window.open(\"/\")'>More</button>",
    "copies": "<div id=here><button onclick='here.append(this.cloneNode(true))'>More</button></div>",
    "covered": "<button>Buy</button><div style='position: fixed; inset: 0'></div>",
    "file": "<input type=file aria-label=Photo><a href='/big'>Download</a>",
    "away": "<a href='http://example.org/'>Away</a><img src='http://tracker.example.org/x.png'>",
    "redirected": "<a href='/elsewhere'>Away</a>",
    "reload": "<script>location = '/reload?' + Math.random()</script>",
    "later": '<p id=p>before</p><button onclick="ask()">Ask</button><script>'
    "ask = () => fetch('/slow').then(r => r.text()).then(t => p.textContent = t)</script>",
    "cut": "".join(f"<p>Line {k} of a long page</p>" for k in range(400)) + "<button>At the end</button>",
}


@asynccontextmanager
async def site() -> AsyncIterator[str]:
    """Serves `pages/` at its root, and the hazards; gives the address."""

    async def page(request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        if name in HAZARDS:
            return web.Response(text=f"<title>{name}</title>{HAZARDS[name]}", content_type="text/html")
        raise web.HTTPNotFound(text="<h1>Nothing here</h1>", content_type="text/html")

    async def home(request: web.Request) -> web.StreamResponse:
        return web.Response(text="<title>Home</title><h1>Home</h1><a href='/later'>Later</a>", content_type="text/html")

    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/html"})
        await response.prepare(request)
        await response.write(b"<title>Endless</title><p>The first line</p>" + b"<!-- -->" * 500)  # more than is sniffed
        await asyncio.Event().wait()  # until the site ends

    async def big(request: web.Request) -> web.StreamResponse:
        headers = {"Content-Type": "application/zip", "Content-Length": str(1 << 30)}
        response = web.StreamResponse(headers={**headers, "Content-Disposition": "attachment; filename=big.zip"})
        await response.prepare(request)
        for _ in range(1 << 14):
            await response.write(bytes(1 << 16))
            SENT.append(1 << 16)
        return response

    async def slow(request: web.Request) -> web.StreamResponse:
        SLOW.append(answer := asyncio.get_running_loop().create_future())
        return web.Response(text=await answer)

    async def form(request: web.Request) -> web.StreamResponse:
        return web.Response(text=f"<title>Found</title><h1>{request.query.get('q')}</h1>", content_type="text/html")

    async def password(request: web.Request) -> web.StreamResponse:
        return web.Response(text="<h1>Who are you?</h1>", status=401, content_type="text/html",
                            headers={"WWW-Authenticate": 'Basic realm="staff"'})  # fmt: skip

    async def away(request: web.Request) -> web.StreamResponse:
        raise web.HTTPFound("http://example.org/")

    async def around(request: web.Request) -> web.StreamResponse:
        raise web.HTTPFound("/around")

    app = web.Application()
    app.add_routes(
        [
            web.get("/", home), web.get("/endless", endless), web.get("/big", big), web.get("/slow", slow),
            web.get("/found", form), web.get("/password", password), web.get("/elsewhere", away),
            web.get("/around", around), web.static("/pages", PAGES), web.get("/{name}", page),
        ]
    )  # fmt: skip
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await (listener := web.TCPSite(runner, "127.0.0.1", 0)).start()
    try:
        yield listener.name
    finally:
        await runner.cleanup()
