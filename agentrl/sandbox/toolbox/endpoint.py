"""Port of this machine that leads to one inside a sandbox, through the toolbox: works without a network."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from agentrl.sandbox.toolbox.owner import Owner
from agentrl.sandbox.toolbox.wire import Field
from agentrl.types.sandbox import SandboxLost

_CHUNK = 1 << 18


class Endpoint:
    """Listens on the loopback of this machine, and forwards each connection to the port inside."""

    def __init__(self, sandbox: Owner, port: int) -> None:
        self._sandbox, self._port = sandbox, port
        self._server: asyncio.Server | None = None
        self._carried: set[asyncio.Task[None]] = set()

    async def open(self) -> str:
        """Starts listening; returns `127.0.0.1:PORT`."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"{host}:{port}"

    def close(self) -> None:
        """Stops listening and closes the connections."""
        if self._server is not None:
            self._server.close()
        for task in self._carried:
            task.cancel()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._carry(reader, writer))
        self._carried.add(task)
        task.add_done_callback(self._carried.discard)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        wire = self._sandbox.wire
        id = wire.fresh_id()
        try:
            with suppress(OSError, SandboxLost):  # the client sees a closed connection
                await wire.request("connect", {"port": self._port}, id=id)
                there = asyncio.ensure_future(self._inwards(id, reader))
                try:
                    await self._outwards(id, writer)
                finally:
                    there.cancel()
        finally:
            wire.send({"op": "process_drop", "id": "", "job": id})
            writer.close()

    async def _inwards(self, id: str, reader: asyncio.StreamReader) -> None:
        wire = self._sandbox.wire
        with suppress(OSError, SandboxLost):
            while data := await reader.read(_CHUNK):
                await wire.request("process_write", {"job": id}, data, timeout_s=self._sandbox.spec.ttl_s)
            await wire.request("process_close", {"job": id})

    async def _outwards(self, id: str, writer: asyncio.StreamWriter) -> None:
        wire = self._sandbox.wire
        fields: dict[str, Field] = {"job": id, "stream": "stdout", "size": _CHUNK}
        while data := (await wire.request("process_read", fields, timeout_s=self._sandbox.spec.ttl_s)).body:
            writer.write(data)
            await writer.drain()
