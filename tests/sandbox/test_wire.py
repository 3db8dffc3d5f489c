"""The host's end of the toolbox protocol, on any event loop and any clock."""

from __future__ import annotations

import asyncio
import importlib
import socket
from collections.abc import Callable

import pytest

from agentrl.sandbox.namespace.backend import NamespaceBackend
from agentrl.sandbox.toolbox.wire import MARGIN_S, Wire, encode
from agentrl.types.sandbox import SandboxExpired, SandboxLost, SandboxSpec
from tests.standing import stand_still, standing

LOOPS = ["asyncio", "uvloop"]


def loop_of(name: str) -> Callable[[], asyncio.AbstractEventLoop]:
    pytest.importorskip(name)
    made: Callable[[], asyncio.AbstractEventLoop] = importlib.import_module(name).new_event_loop
    return made


@pytest.mark.parametrize("name", LOOPS)
def test_a_request_and_its_reply_and_the_end(name: str) -> None:
    async def program() -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            wire = Wire("w")
            await asyncio.get_running_loop().create_unix_connection(lambda: wire, sock=ours)
            asked = asyncio.create_task(wire.request("health", {}))
            await asyncio.sleep(0)
            assert theirs.recv(1 << 16) == encode({"op": "health", "id": "1"})
            theirs.sendall(encode({"id": "1", "processes": 3}, b"body"))
            assert (await asked).body == b"body"
        with pytest.raises(SandboxLost, match="it hung up"):
            await wire.request("health", {})

    with asyncio.Runner(loop_factory=loop_of(name)) as runner:
        runner.run(program())


@pytest.mark.slow
@pytest.mark.parametrize("name", LOOPS)
def test_a_sandbox_starts_on_any_event_loop(name: str) -> None:
    """Ray's workers run on uvloop where it is installed."""

    async def program() -> str:
        backend = NamespaceBackend()
        async with await backend.create(SandboxSpec()) as sandbox:
            said = (await sandbox.exec("echo here")).text
        await backend.close()
        return said

    with asyncio.Runner(loop_factory=loop_of(name)) as runner:
        assert runner.run(program()) == "here\n"


def test_why_it_hung_up_is_said() -> None:
    async def program() -> None:
        for error, told in [
            (None, "it hung up$"),
            (ConnectionResetError(104, "x"), "Connection reset"),
            (AssertionError("no such class"), "AssertionError: no such class"),
        ]:
            wire = Wire("w")
            waits = wire.expect("1")
            wire.connection_lost(error)
            with pytest.raises(SandboxLost, match=told):
                await waits

    asyncio.run(program())


def test_a_silent_toolbox_is_not_lost_while_this_process_stands_still() -> None:
    async def program() -> bytes:
        wire = Wire("w")
        asked = asyncio.create_task(wire.request("exec", {}, timeout_s=10.0))
        await asyncio.sleep(1)
        stand_still(10_000)
        await asyncio.sleep(10 + MARGIN_S - 2)
        wire.data_received(encode({"id": "1"}, b"late"))
        return (await asked).body

    assert standing(program()) == b"late"


def test_one_that_stays_silent_is_lost_all_the_same() -> None:
    async def program() -> None:
        with pytest.raises(SandboxLost, match="no answer within 25 s"):
            await Wire("w").request("exec", {}, timeout_s=10.0)

    standing(program())


def test_the_life_of_a_sandbox_is_not_that_of_the_machine() -> None:
    from agentrl.sandbox.toolbox.client import ToolboxSandbox

    class Made(ToolboxSandbox):
        async def destroy(self) -> None: ...

        def oom_kills(self) -> int | None:
            return None

        def memory_mb(self) -> float | None:
            return None

        def cpu_s(self) -> float | None:
            return None

    async def program() -> None:
        sandbox = Made(SandboxSpec(ttl_s=60), "w", Wire("w"))
        sandbox.limit_life()
        await asyncio.sleep(1)
        stand_still(10_000)
        await asyncio.sleep(58)
        assert not sandbox.wire.lost
        await asyncio.sleep(2)
        with pytest.raises(SandboxExpired, match="ttl_s of 60 s"):
            raise sandbox.wire.loss()
        await sandbox.close()

    standing(program())
