"""MCP server as a child process: one JSON-RPC message per line, of bounded length.

The SDK's client joins the parts of a line repeatedly, which takes minutes for a line of 100 MB, and reads without a
limit. Here a line that is too long is skipped and its call fails.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from agentrl.tools.builtin.mcp.settings import McpSettings
from agentrl.types.clocks.deadline import Deadline
from agentrl.types.lifeline import Lifeline
from agentrl.types.parts.foreign_json import VALUES, has_many_values
from agentrl.types.stdlib import piped

CHUNK = 1 << 16
EXIT_S = 2.0
"""Seconds for a server to exit after its stdin is closed; then it is killed."""

_ID = re.compile(rb'"id"\s*:\s*(\d+)')


class StdioServer:
    """Process of a server.

    Attributes:
        garbage: number of output lines that were not messages.
    """

    def __init__(self, process: asyncio.subprocess.Process, lifeline: Lifeline, most: int) -> None:
        self._process, self._lifeline, self._most = process, lifeline, most
        self._stderr, self._first, self.garbage = b"", b"", 0

    @classmethod
    async def start(cls, settings: McpSettings) -> StdioServer:
        """Starts the command of a recipe. It is killed when this process ends, in any way.

        Raises:
            OSError: the process cannot be started.
        """
        from mcp.client.stdio import get_default_environment

        with Lifeline() as lifeline:
            process = await asyncio.create_subprocess_exec(
                *lifeline.guard, *(settings.command or ()), env=get_default_environment() | settings.env,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
                pass_fds=lifeline.pass_fds, limit=CHUNK,
            )  # fmt: skip
        return cls(process, lifeline, settings.max_bytes)

    async def lines(self) -> AsyncIterator[bytes]:
        """Yields the lines of its output; for one that is too long, an error answer to its call."""
        output = piped(self._process.stdout)
        line, dropped = bytearray(), 0
        while chunk := await output.read(CHUNK):
            await asyncio.sleep(0)  # a flood of output must not starve other tasks
            *ends, rest = chunk.split(b"\n")
            for end in ends:
                line += end
                if dropped:
                    size, most = (dropped + len(end)) / 1e6, self._most / 1e6
                    yield _refused(bytes(line), f"its answer has {size:.3g} MB, and max_bytes is {most:.3g} MB")
                elif has_many_values(line):
                    yield _refused(bytes(line), f"its answer has more than {VALUES:,} values")
                elif line.strip():
                    yield bytes(line)
                line, dropped = bytearray(), 0
            line += rest
            if len(line) > self._most or dropped:
                dropped += len(rest) if dropped else len(line)
                line = line[:1000] + line[-1000:] if len(line) > 2000 else line
        with suppress(TimeoutError):  # for its exit code in messages
            async with Deadline(EXIT_S):
                await self._process.wait()

    def refuse(self, line: bytes) -> None:
        """Counts a line that is not a message and keeps the first."""
        self._first = self._first or line[:200]
        self.garbage += 1

    async def write(self, data: bytes) -> None:
        """Sends a line."""
        entry = piped(self._process.stdin)
        entry.write(data + b"\n")
        await entry.drain()

    async def listen(self) -> None:
        """Drains stderr and keeps the end: a full pipe would block the server."""
        errors = piped(self._process.stderr)
        while chunk := await errors.read(CHUNK):
            await asyncio.sleep(0)
            self._stderr = (self._stderr + chunk)[-1000:]

    async def end(self) -> None:
        """Closes its stdin, waits, then kills all of its processes."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        with suppress(TimeoutError):
            async with Deadline(EXIT_S):
                await self._process.wait()
        self._lifeline.close()
        await self._process.wait()

    def stopped(self) -> bool:
        """Returns True if a process below the guard with the server's stdin and stdout was stopped (SIGSTOP)."""
        below, found = [self._process.pid], dict[int, tuple[str, str]]()
        while below:
            children = _children(below.pop())
            found |= {pid: streams for pid in children if (streams := _streams(pid)) is not None}
            below += children
        own = next(iter(found.values()), None)
        return any(_state(pid) == "T" for pid, streams in found.items() if streams == own)

    def state(self) -> str:
        """Describes the process, for messages."""
        code = self._process.returncode
        logged = self._stderr.decode("utf-8", "replace").strip()[-500:]
        parts = [
            "it runs" if code is None else f"exit code {code}",
            f"{self.garbage} lines of its output were no messages, the first {self._first!r}" if self.garbage else "",
            f"its stderr ends: {logged}" if logged else "",
        ]
        return "; ".join(filter(None, parts))


def _refused(line: bytes, why: str) -> bytes:
    """Returns an error reply to the call that a line answers; a line without an id is cut and passed on."""
    found = _ID.search(line)
    error = b'{"code": -32603, "message": "%s"}' % why.encode()
    return b'{"jsonrpc": "2.0", "id": %s, "error": %s}' % (found[1], error) if found else line[:200]


def _children(pid: int) -> list[int]:
    with suppress(OSError):
        threads = Path(f"/proc/{pid}/task").glob("*/children")
        return [int(child) for each in threads for child in each.read_text().split()]
    return []


def _streams(pid: int) -> tuple[str, str] | None:
    with suppress(OSError):
        return os.readlink(f"/proc/{pid}/fd/0"), os.readlink(f"/proc/{pid}/fd/1")
    return None


def _state(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


@asynccontextmanager
async def messages(server: StdioServer) -> AsyncIterator[tuple[Any, Any]]:
    """Opens the streams of the SDK's session to a server. Exit it in the task that entered it."""
    import anyio
    from mcp import types
    from mcp.shared.message import SessionMessage

    heard, reading = anyio.create_memory_object_stream[Any](0)
    writing, said = anyio.create_memory_object_stream[Any](0)
    gone = (anyio.ClosedResourceError, anyio.BrokenResourceError, OSError)

    async def read() -> None:
        async with heard:
            with suppress(*gone):
                async for line in server.lines():
                    try:
                        message = types.jsonrpc_message_adapter.validate_json(line, by_name=False)
                    except ValueError:
                        server.refuse(line)
                        continue
                    await heard.send(SessionMessage(message))

    async def write() -> None:
        async with said:
            async for each in said:
                try:
                    await server.write(each.message.model_dump_json(by_alias=True, exclude_unset=True).encode())
                except OSError:
                    await heard.aclose()

    async with anyio.create_task_group() as group:
        for part in (read, write, server.listen):
            group.start_soon(part)
        try:
            yield reading, writing
        finally:
            with anyio.CancelScope(shield=True):
                await server.end()
            for stream in (heard, reading, writing, said):
                await stream.aclose()
            group.cancel_scope.cancel()
