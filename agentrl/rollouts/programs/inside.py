"""Runs a program inside the episode's sandbox, which reaches the policy through a relay there (`/tools/programs`)."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import Literal

import aiohttp
import msgspec
from yarl import URL

from agentrl.rollouts.programs.ended import Ended, ProgramFailed, Tail
from agentrl.types.clocks.deadline import Deadline
from agentrl.types.paths import data_path
from agentrl.types.sandbox import Process, Sandbox, SandboxLost

START_S = 30.0
CHUNK = 1 << 18
LINE = 32 << 20
"""Maximum of bytes of a request of the relay. The agent may write there, too."""
AT_ONCE = 64
"""Maximum of concurrent requests of a sandbox; further ones wait there."""
_READY = re.compile(rb"ready (\d+)\n")


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
        """Whether it carries nothing any more: the programs of the sandbox can end it."""
        return self._carrying.done()


@asynccontextmanager
async def relayed(sandbox: Sandbox, url: str) -> AsyncIterator[Relay]:
    """A relay in the sandbox that leads to `url` here, until the block ends.

    Raises:
        ProgramFailed: the sandbox has no Python for the relay.
    """
    process = await _started(sandbox)
    found = _READY.match(await _first_line(process))
    if found is None:
        said = (await process.read("stderr")).decode("utf-8", "replace").strip()
        raise ProgramFailed(f"the relay in the sandbox did not start: {said}")
    carrying = asyncio.create_task(_carry(process, url))
    try:
        yield Relay(f"http://127.0.0.1:{int(found[1])}", carrying)
    finally:
        carrying.cancel()
        await asyncio.gather(carrying, return_exceptions=True)
        with suppress(SandboxLost):
            await process.kill()


@cache
def _program() -> str:
    return data_path("tools", "programs", "policy_relay.py").read_text()


async def _started(sandbox: Sandbox) -> Process:
    try:
        return await sandbox.spawn(["python3", "-I", "-S", "-B", "-c", _program()], cwd="/")
    except OSError as error:
        raise ProgramFailed(
            f"the relay in the sandbox cannot be started: {error}",
            place="agent.where",
            remedy="an image with python3, or where: host",
        ) from None


async def _first_line(process: Process) -> bytes:
    said = b""
    with suppress(TimeoutError):
        async with Deadline(START_S):
            while len(said) < 4096 and not said.endswith(b"\n") and (data := await process.read()):
                said += data
    return said


class Asked(msgspec.Struct):
    """Request of the relay."""

    id: int
    method: str
    path: str
    headers: dict[str, str]
    body: str


async def _carry(process: Process, url: str) -> None:
    """Forwards requests concurrently. A relay that writes an invalid request is killed."""
    under_way = set[asyncio.Task[None]]()
    async with aiohttp.ClientSession() as http:
        try:
            async for line in _lines(process):
                asked = msgspec.json.decode(line, type=Asked)
                while len(under_way) >= AT_ONCE:
                    await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
                task = asyncio.create_task(_pass(http, process, url, asked))
                under_way.add(task)
                task.add_done_callback(under_way.discard)
            await process.kill()
        except (msgspec.DecodeError, UnicodeDecodeError):
            await process.kill()
        finally:
            for task in under_way:
                task.cancel()


async def _lines(process: Process) -> AsyncIterator[bytes]:
    """Yields the lines that a process writes, until it ends or one is too long."""
    rest = bytearray()
    while data := await process.read():
        first, *more = data.split(b"\n")
        rest += first
        for part in more:
            yield bytes(rest)
            rest = bytearray(part)
        if len(rest) > LINE:
            return


async def _pass(http: aiohttp.ClientSession, process: Process, url: str, asked: Asked) -> None:
    status, kind, said = await _reply(http, url, asked)
    response = {
        "id": asked.id,
        "status": status,
        "headers": {"Content-Type": kind},
        "body": base64.b64encode(said).decode(),
    }
    await process.write(json.dumps(response).encode() + b"\n")


async def _reply(http: aiohttp.ClientSession, url: str, asked: Asked) -> tuple[int, str, bytes]:
    """Returns status, content type and body. Requests of the sandbox go only to the server at `url`."""
    if not asked.path.startswith("/"):  # "@host/" and "8/" would lead elsewhere
        return 400, "text/plain", b"the path of a request starts with /"
    timeout = aiohttp.ClientTimeout(total=None)
    try:
        body = base64.b64decode(asked.body)
        target = URL(url + asked.path, encoded=True)
        async with http.request(
            asked.method, target, headers=asked.headers, data=body, timeout=timeout, allow_redirects=False
        ) as reply:
            return reply.status, reply.headers.get("Content-Type", "application/json"), await reply.read()
    except (aiohttp.ClientError, ValueError) as error:
        return 502, "text/plain", str(error).encode("utf-8", "replace")
