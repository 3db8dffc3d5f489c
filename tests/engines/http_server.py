"""Real HTTP servers for tests: what they answer is a function of the test's."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

Answer = Callable[[str, Any], Awaitable[Any]]
"""(path, body) -> what to send as JSON, or a `web.Response`."""


@asynccontextmanager
async def serving(answer: Answer) -> AsyncIterator[str]:
    """Serves on a free port; the URL."""

    async def handle(request: web.Request) -> web.StreamResponse:
        body = await request.json() if request.can_read_body else None
        said = await answer(request.path, body)
        return said if isinstance(said, web.StreamResponse) else web.json_response(said)

    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def status(code: int, text: str = "no") -> web.Response:
    return web.Response(status=code, text=text)
