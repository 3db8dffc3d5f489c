"""Search server with one index for all processes, and its client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

import msgspec
from aiohttp import web

from agentrl.tools.builtin.search.document import Document
from agentrl.tools.builtin.search.requests import ask
from agentrl.types.errors import InfraError


class Finds(Protocol):
    """Interface of an index."""

    def find(self, query: str, k: int) -> list[Document]:
        """Returns the `k` best documents."""
        ...

    def get(self, id: str) -> Document | None:
        """Returns the document with an id; None if missing."""
        ...

    def __len__(self) -> int: ...


def application(index: Finds) -> web.Application:
    """Makes the app: `GET /find?q=...&k=...`: best documents; `GET /document?id=...`: one or null; `GET /`: count."""

    async def find(request: web.Request) -> web.Response:
        k = request.query.get("k", "5")
        if not k.isdigit() or not 0 < int(k) <= 1000:
            raise web.HTTPBadRequest(text="k is a number from 1 to 1000")
        found = await asyncio.to_thread(index.find, request.query.get("q", ""), int(k))
        return _json(found)

    async def document(request: web.Request) -> web.Response:
        return _json(index.get(request.query.get("id", "")))

    async def about(request: web.Request) -> web.Response:
        return _json({"documents": len(index)})

    app = web.Application()
    app.add_routes([web.get("/find", find), web.get("/document", document), web.get("/", about)])
    return app


def serve(index: Finds, host: str, port: int, told: Callable[[str], None]) -> None:
    """Serves an index until interrupted. `told`: callback with the address. Port 0: any free port."""

    async def run() -> None:
        runner = web.AppRunner(application(index), access_log=None)
        await runner.setup()
        await web.TCPSite(runner, host, port).start()
        told(f"http://{host}:{runner.addresses[0][1]}")
        try:
            await asyncio.Event().wait()
        finally:
            await runner.cleanup()

    asyncio.run(run())


def _json(value: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")


async def find(query: str, k: int, url: str, timeout_s: float) -> list[Document]:
    """Returns the best documents of a server's index."""
    at = f"{url.rstrip('/')}/find"
    found: list[Document] = _as(
        await ask("GET", at, said=query, query=lambda text: {"q": text, "k": str(k)}, timeout_s=timeout_s),
        list[Document],
        at,
    )
    return found


async def get(id: str, url: str, timeout_s: float) -> Document | None:
    """Returns a document of a server's index; None if missing."""
    at = f"{url.rstrip('/')}/document"
    answer = await ask("GET", at, said=id, query=lambda text: {"id": text}, timeout_s=timeout_s)
    found: Document | None = _as(answer, Document | None, at)
    return found


def _as(found: object, kind: Any, url: str) -> Any:
    try:
        return msgspec.convert(found, kind)
    except msgspec.ValidationError as error:
        raise InfraError(f"the answer is not that of `agentrl search serve`: {error}", place=url) from None
