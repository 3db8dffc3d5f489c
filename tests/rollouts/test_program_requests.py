"""Requests of programs: through the relay of a sandbox, and side by side."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import pytest
from aiohttp import web

from agentrl.proxy.messages import BadRequest
from agentrl.proxy.web import listening
from agentrl.rollouts.programs import inside
from agentrl.rollouts.programs.guest import GuestAgent
from agentrl.rollouts.programs.inside import relayed
from agentrl.rollouts.programs.recorder import EpisodeRecorder
from agentrl.rollouts.programs.server import Door
from agentrl.rollouts.session import Session
from agentrl.sandbox.frames import frame
from agentrl.types.recording import Recording
from agentrl.types.sandbox import Sandbox
from agentrl.types.task import Task


class _Process:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def read(self, stream: str = "stdout", n: int = 1 << 18) -> bytes:
        return cast("bytes", await getattr(self.process, stream).read(n))

    async def write(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)

    async def kill(self) -> None:
        self.process.kill()
        await self.process.wait()


class _Here:
    """A sandbox that is none: its processes are of this machine."""

    async def spawn(self, command: Sequence[str], cwd: str | None = None) -> _Process:
        pipe = asyncio.subprocess.PIPE
        more = {"stdin": pipe, "stdout": pipe, "stderr": pipe}
        return _Process(await asyncio.create_subprocess_exec(sys.executable, *command[1:], **more))


async def _said(request: web.Request) -> web.Response:
    if request.path == "/away":
        raise web.HTTPFound("/elsewhere")
    return web.Response(text=f"{request.path} {len(await request.read())}")


def _server() -> web.Application:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", _said)
    return app


async def _answer(url: str, path: str) -> tuple[int, str]:
    """Of a request whose path is written as it is."""
    read, write = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    write.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    said = (await read.read()).decode()
    write.close()
    return int(said.split()[1]), said.splitlines()[-1]


@pytest.mark.slow
async def test_a_relay_leads_to_one_server_alone() -> None:
    async with listening(_server(), "127.0.0.1", 0) as policy, listening(_server(), "127.0.0.1", 0) as other:
        async with relayed(cast("Sandbox", _Here()), policy) as relay:
            assert await _answer(relay.address, "/v1/models") == (200, "/v1/models 0")
            for path in (f"@{other.removeprefix('http://')}/", "8/", "http://[bad/", f"{other}/"):
                assert (await _answer(relay.address, path))[0] == 400
            assert (await _answer(relay.address, "/away"))[0] == 302
        async with relayed(cast("Sandbox", _Here()), "http://127.0.0.1:1") as relay:
            assert (await _answer(relay.address, "/v1/models"))[0] == 502


@pytest.mark.slow
async def test_a_body_without_a_length_is_refused_and_not_lost() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"{}"

    async with (
        listening(_server(), "127.0.0.1", 0) as policy,
        relayed(cast("Sandbox", _Here()), policy) as relay,
        aiohttp.ClientSession() as http,
    ):
        assert await (await http.post(f"{relay.address}/x", data=b"{}")).text() == "/x 2"
        assert (await http.post(f"{relay.address}/x", data=pieces())).status == 411


async def test_requests_side_by_side_stay_within_the_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    async def reply(self: Any, body: dict[str, Any], ask: Any) -> int:
        await asyncio.sleep(0)
        self.turns.append(body)
        return 1

    monkeypatch.setattr("agentrl.proxy.recorder.Recorder._reply", reply)
    parts = {"engine": None, "renderer": None, "sampling": None, "seed": 0, "id": "e"}
    limits, images = SimpleNamespace(generate_s=60), SimpleNamespace(take=None)
    state = SimpleNamespace(recording=Recording())
    session = SimpleNamespace(**parts, state=state, turns=[], images=images, limits=limits, max_turns=3)
    recorder = EpisodeRecorder(cast("Session", session))
    await recorder.reply({"k": -1})
    found = await asyncio.gather(*(recorder.reply({"k": k}) for k in range(5)), return_exceptions=True)
    assert [isinstance(one, BadRequest) for one in found] == [False, False, True, True, True]
    assert len(recorder.turns) == 3


class _Says:
    """A process of the sandbox to whose output the agent writes."""

    def __init__(self, *parts: bytes) -> None:
        self.parts, self.killed, self.answers = [*parts], False, list[bytes]()

    async def read(self) -> bytes:
        await asyncio.sleep(0)
        return self.parts.pop(0) if self.parts and not self.killed else b""

    async def write(self, data: bytes) -> None:
        self.answers.append(data)

    async def kill(self) -> None:
        self.killed = True


ASK = {"id": 1, "method": "GET", "path": "@", "headers": {}}
ASKED = frame(ASK)


def raw(text: bytes) -> bytes:
    """A frame whose message is no JSON, or other JSON."""
    return len(text).to_bytes(4, "big") + bytes(4) + text


async def carried(process: _Says) -> None:
    await inside._carry(inside._messages(cast("Any", process)), cast("Any", process), "http://127.0.0.1:1")


@pytest.mark.parametrize(
    "said",
    [
        b"no frame\n", raw(b"no JSON"), raw(b"[" * 5000), raw(b"[]"), raw(b'{"id": "x"}'), raw(b"\xff"), raw(b""),
        frame(ASK | {"path": 1}), frame(ASK | {"headers": []}),
    ],
)  # fmt: skip
async def test_an_agent_that_writes_as_the_relay_ends_it(said: bytes) -> None:
    process = _Says(ASKED[:9], ASKED[9:] + ASKED, said, ASKED)
    await carried(process)
    assert process.killed
    assert len(process.parts) == 1


@pytest.mark.parametrize("head", [(1001).to_bytes(4, "big") + bytes(4), bytes(4) + (1001).to_bytes(4, "big")])
async def test_a_long_message_and_many_requests_are_bounded(head: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inside, "LONGEST", 1000)
    process = _Says(head, *[b"x" * 300] * 10)
    await carried(process)
    assert process.killed
    assert len(process.parts) == 10
    most, now = 0, 0

    async def counted(*_: Any) -> None:
        nonlocal most, now
        now += 1
        most = max(most, now)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        now -= 1

    monkeypatch.setattr(inside, "_pass", counted)
    await carried(_Says(*[ASKED * 500] * 4))
    assert most == inside.AT_ONCE


def test_clients_of_apis_in_a_guest_do_not_reach_the_policy() -> None:
    """A judge of the guest has its own address and key, of OpenAI, Anthropic or Google."""
    given = GuestAgent()._environment(Task.of("t", "Go."), Door("http://127.0.0.1:1", "sk-1", "m"))
    named = {name: value for name, value in given.items() if "sk-1" in value}
    assert named == {
        "AGENTRL_URL": "http://127.0.0.1:1/s/sk-1",
        "AGENTRL_BASE_URL": "http://127.0.0.1:1/s/sk-1/v1",
        "AGENTRL_API_KEY": "sk-1",
    }
