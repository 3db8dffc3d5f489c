"""Process in a sandbox with which the caller exchanges data."""

from __future__ import annotations

import asyncio
from typing import Literal

from agentrl.sandbox.toolbox.owner import Owner
from agentrl.sandbox.toolbox.wire import Field, Response, finite
from agentrl.types.sandbox import ExecResult


class ToolboxProcess:
    """Process with which the caller exchanges data. It is lost when the sandbox is restored."""

    def __init__(self, sandbox: Owner, id: str, pid: int, end: asyncio.Future[Response]) -> None:
        self.pid = pid
        self._sandbox, self._wire, self._id, self._end = sandbox, sandbox.wire, id, end
        self._writing = asyncio.Lock()

    async def read(self, stream: Literal["stdout", "stderr"] = "stdout", size: int = 65536) -> bytes:
        """Waits for some bytes; empty at the end of the stream."""
        fields: dict[str, Field] = {"job": self._id, "stream": stream, "size": size}
        return (await self._wire.request("process_read", fields, timeout_s=self._sandbox.spec.ttl_s)).body

    async def write(self, data: bytes) -> None:
        """Writes all of `data` to stdin. Calls at the same time take turns."""
        async with self._writing:  # the toolbox writes for one request at a time
            await self._wire.request("process_write", {"job": self._id}, data, timeout_s=self._sandbox.spec.ttl_s)

    async def close_stdin(self) -> None:
        """Closes stdin."""
        await self._wire.request("process_close", {"job": self._id})

    async def wait(self, timeout_s: float) -> ExecResult | None:
        """Waits for its end and returns the result; None after `timeout_s`."""
        await asyncio.wait([self._end], timeout=finite(timeout_s))
        return self._sandbox.result(self._end.result(), b"") if self._end.done() else None

    def drop(self) -> None:
        """Closes its pipes: nothing more can be read or written."""
        self._wire.send({"op": "process_drop", "id": "", "job": self._id})

    async def kill(self) -> None:
        """Ends it and all processes that it started."""
        self._wire.send({"op": "stop", "id": "", "job": self._id, "reason": "kill"})
        await self._wire.wait(self._end, 30)
