"""Runs a program inside the episode's sandbox, which reaches the policy through a relay there (`/tools/programs`)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import aiohttp
import msgspec
from yarl import URL

from agentrl.rollouts.programs.ended import Ended, ProgramFailed, Tail
from agentrl.sandbox.frames import Frames, frame
from agentrl.types.clocks.deadline import Deadline
from agentrl.types.paths import data_path
from agentrl.types.sandbox import Process, Sandbox, SandboxLost

START_S = 30.0
CHUNK = 1 << 18
LONGEST = 32 << 20
"""Maximum of bytes of a request of the relay. The agent may write there, too."""
AT_ONCE = 64
"""Maximum of concurrent requests of a sandbox; further ones wait there."""


async def run_inside(sandbox: Sandbox, command: Sequence[str], env: Mapping[str, str], stdin: bytes) -> Ended:
    """Runs a program to its end in the sandbox's workdir. On cancellation, it is killed.

    Raises:
        ProgramFailed: it cannot be started.
        SandboxLost: the sandbox is gone.
    """
    try:
        process = await sandbox.spawn(command, env=env)
    except OSError as error:
        raise ProgramFailed(f"the program cannot be started in the sandbox: {error}", place="agent.program") from None
    out, err = Tail(), Tail()
    try:
        await asyncio.gather(_feed(process, stdin), _read(process, "stdout", out), _read(process, "stderr", err))
        result = await process.wait(sandbox.spec.ttl_s)
    finally:
        with suppress(SandboxLost):
            await process.kill()
    code = None if result is None else result.code
    return Ended(-1 if code is None else code, out.kept, err.kept)


async def _feed(process: Process, data: bytes) -> None:
    with suppress(BrokenPipeError):
        await process.write(data)
    await process.close_stdin()


async def _read(process: Process, stream: Literal["stdout", "stderr"], tail: Tail) -> None:
    while data := await process.read(stream, CHUNK):
        tail.add(data)


@dataclass(frozen=True)
class Relay:
    """A way from a sandbox to the policy.

    Attributes:
        address: its base URL in the sandbox.
    """

    address: str
    _carrying: asyncio.Task[None]

    @property
    def ended(self) -> bool:
        """Returns True if it is broken: the programs of the sandbox can end it."""
        return self._carrying.done()


@asynccontextmanager
async def relayed(sandbox: Sandbox, url: str) -> AsyncIterator[Relay]:
    """A relay in the sandbox that leads to `url` here, until the block ends.

    Raises:
        ProgramFailed: the sandbox has no Python for the relay.
    """
    process = await _started(sandbox)
    messages = _messages(process)
    port = await _port(messages)
    if port is None:
        said = (await process.read("stderr")).decode("utf-8", "replace").strip()
        raise ProgramFailed(f"the relay in the sandbox did not start: {said}")
    carrying = asyncio.create_task(_carry(messages, process, url))
    try:
        yield Relay(f"http://127.0.0.1:{port}", carrying)
    finally:
        carrying.cancel()
        await asyncio.gather(carrying, return_exceptions=True)
        with suppress(SandboxLost):
            await process.kill()


@cache
def _program() -> str:
    """Returns the source of the relay, with that of the module that it imports."""
    frames = data_path("tools", "shared", "frames.py").read_text()
    relay = data_path("tools", "programs", "policy_relay.py").read_text()
    module = "import sys, types\nframes = sys.modules['frames'] = types.ModuleType('frames')\n"
    return f"{module}exec({frames!r}, vars(frames))\nexec({relay!r})\n"


async def _started(sandbox: Sandbox) -> Process:
    try:
        return await sandbox.spawn(["python3", "-I", "-S", "-B", "-c", _program()], cwd="/")
    except OSError as error:
        raise ProgramFailed(
            f"the relay in the sandbox cannot be started: {error}",
            place="agent.where",
            remedy="an image with python3, or where: host",
        ) from None


async def _messages(process: Process) -> AsyncIterator[tuple[dict[str, Any], bytes]]:
    """Yields the messages that a process writes, until it ends. Raises ValueError for what is none, or too long."""
    frames = Frames(LONGEST)
    while data := await process.read():
        for message in frames.feed(data):
            yield message


async def _port(messages: AsyncIterator[tuple[dict[str, Any], bytes]]) -> int | None:
    """Returns the port of the relay, its first message; None if it does not start."""
    with suppress(TimeoutError, ValueError, StopAsyncIteration):
        async with Deadline(START_S):
            port = (await anext(messages))[0].get("port")
            return port if isinstance(port, int) else None
    return None


class Asked(msgspec.Struct):
    """Request of the relay."""

    id: int
    method: str
    path: str
    headers: dict[str, str]


async def _carry(messages: AsyncIterator[tuple[dict[str, Any], bytes]], process: Process, url: str) -> None:
    """Forwards requests concurrently. A relay that writes an invalid request is killed."""
    under_way = set[asyncio.Task[None]]()
    async with aiohttp.ClientSession() as http:
        try:
            async for message, body in messages:
                asked = msgspec.convert(message, Asked)
                while len(under_way) >= AT_ONCE:
                    await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
                task = asyncio.create_task(_pass(http, process, url, asked, body))
                under_way.add(task)
                task.add_done_callback(under_way.discard)
            await process.kill()
        except (ValueError, msgspec.ValidationError):
            await process.kill()
        finally:
            for task in under_way:
                task.cancel()


async def _pass(http: aiohttp.ClientSession, process: Process, url: str, asked: Asked, body: bytes) -> None:
    status, kind, content = await _reply(http, url, asked, body)
    await process.write(frame({"id": asked.id, "status": status, "headers": {"Content-Type": kind}}, content))


async def _reply(http: aiohttp.ClientSession, url: str, asked: Asked, body: bytes) -> tuple[int, str, bytes]:
    """Returns status, content type and body. Requests of the sandbox go only to the server at `url`."""
    if not asked.path.startswith("/"):  # "@host/" and "8/" would lead elsewhere
        return 400, "text/plain", b"the path of a request starts with /"
    timeout = aiohttp.ClientTimeout(total=None)
    try:
        target = URL(url + asked.path, encoded=True)
        async with http.request(
            asked.method, target, headers=asked.headers, data=body, timeout=timeout, allow_redirects=False
        ) as reply:
            return reply.status, reply.headers.get("Content-Type", "application/json"), await reply.read()
    except (aiohttp.ClientError, ValueError) as error:
        return 502, "text/plain", str(error).encode("utf-8", "replace")
