"""The host's side of a sandbox whose toolbox answers wrongly, late or never. Starts no sandbox."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import pytest

from agentrl.sandbox.health import check_answers
from agentrl.sandbox.pool import Pool
from agentrl.sandbox.toolbox import archives, carry, egress, wire
from agentrl.sandbox.toolbox.client import ToolboxSandbox
from agentrl.sandbox.toolbox.egress import Egress, open_egress
from agentrl.sandbox.toolbox.snapshot import Snapshots, SnapshotSandbox
from agentrl.sandbox.toolbox.wire import Field, Response, Wire, encode
from agentrl.types.sandbox import (
    CapabilityMissing,
    ExecResult,
    Health,
    SandboxBroken,
    SandboxLost,
    SandboxSpec,
    SandboxStartFailed,
    SandboxUnavailable,
)

Reply = Response | Exception


class Told(Wire):
    """A wire whose replies are given."""

    def __init__(self, *replies: Reply) -> None:
        super().__init__("w")
        self._replies = list(replies)
        self.sent: list[Mapping[str, Field]] = []

    async def request(
        self, op: str, fields: Mapping[str, Field], body: bytes = b"", timeout_s: float = 30.0, id: str | None = None
    ) -> Response:
        reply = self._replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return reply

    def send(self, fields: Mapping[str, Field], body: bytes = b"") -> None:
        self.sent.append(fields)


class Bare(ToolboxSandbox):
    """A sandbox without snapshots, of no backend."""

    async def destroy(self) -> None: ...

    def oom_kills(self) -> int | None:
        return 3

    def memory_mb(self) -> float | None:
        return 9.5

    def cpu_s(self) -> float | None:
        return None


def bare(*replies: Reply) -> Bare:
    return Bare(SandboxSpec(), "w", Told(*replies))


# Calls


@pytest.mark.parametrize(
    "call",
    [lambda sandbox: sandbox.snapshot(), lambda sandbox: sandbox.restore("1"), lambda sandbox: sandbox.fork(2)],
    ids=["snapshot", "restore", "fork"],
)
async def test_a_sandbox_without_snapshots_says_what_to_set(call: Callable[[Bare], Any]) -> None:
    with pytest.raises(CapabilityMissing, match="cannot be snapshot") as refused:
        await call(bare())
    assert refused.value.place == "sandbox.spec.snapshots"
    assert refused.value.remedy == "set sandbox.spec.snapshots: true, on a backend that can"


async def test_a_file_that_grows_beyond_the_limit_while_it_is_read_is_no_file() -> None:
    sandbox = bare(Response({"more": ""}, b"123"), Response({}, b"45"), Response({}, b"6"))
    with pytest.raises(OSError, match="larger than the limit of 4 bytes") as large:
        await sandbox.read("log", limit=4)
    assert (large.value.errno, large.value.filename) == (errno.EFBIG, "log")
    told: Any = sandbox.wire
    assert told.sent == [{"op": "process_drop", "id": "", "job": "1"}], "the rest is not sent"
    assert await bare(Response({"more": ""}, b"123"), Response({}, b"4"), Response({}, b"")).read("log", limit=4) == (
        b"1234"
    )


async def test_an_empty_command_and_one_with_a_nul_byte_are_refused() -> None:
    with pytest.raises(ValueError, match="an empty command"):
        await bare().exec([])
    with pytest.raises(ValueError, match="a command cannot hold a NUL byte"):
        await (await bare().session()).run("echo \0")


async def test_a_sandbox_without_memory_for_an_answer_is_alive() -> None:
    health = await bare(OSError(errno.ENOMEM, "Cannot allocate memory")).health()
    assert health == Health(True, None, 9.5, 3)
    lost = SandboxLost("gone")
    assert await bare(lost).health() == Health(alive=False, loss=lost)


class Silent:
    """A sandbox that is dead, for a reason or for none that is known."""

    label = "episode-7"

    def __init__(self, loss: SandboxLost | None) -> None:
        self._loss = loss

    async def health(self) -> Health:
        return Health(alive=False, loss=self._loss)


async def test_a_deadline_that_a_dead_sandbox_missed_is_its_fault() -> None:
    known: Any = Silent(SandboxBroken("its programs took all its memory"))
    with pytest.raises(SandboxBroken, match="took all its memory"):
        await check_answers(known)
    unknown: Any = Silent(None)
    with pytest.raises(SandboxLost, match="it does not answer") as lost:
        await check_answers(unknown)
    assert lost.value.place == "episode-7"
    await check_answers(None)


# The end of a wire


async def loss_of(wire: Wire, then: Callable[[], None]) -> SandboxLost:
    waits = asyncio.ensure_future(wire.wait(wire.expect("1"), 10.0))
    await asyncio.sleep(0)
    then()
    with pytest.raises(SandboxLost) as lost:
        await waits
    return lost.value


async def test_a_cause_that_is_not_found_in_time_is_nobodys_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    async def for_ever(silent: bool) -> str:
        await asyncio.Event().wait()
        return "its programs did it"

    monkeypatch.setattr(wire, "INQUEST_S", 0.0)
    w = Wire("w")
    w.postmortem = for_ever
    lost = await loss_of(w, lambda: w.connection_lost(None))
    assert str(lost) == "the sandbox of w is gone: it hung up"
    assert not isinstance(lost, SandboxBroken)


async def test_a_toolbox_that_says_how_it_failed_was_broken_from_within() -> None:
    w = Wire("w")

    def breaks() -> None:
        w.data_received(encode({"id": "broken", "message": "No such file: toolbox"}))
        w.connection_lost(None)

    lost = await loss_of(w, breaks)
    assert isinstance(lost, SandboxBroken)
    assert str(lost) == "the sandbox of w is gone: it hung up; its toolbox failed: No such file: toolbox"


async def test_the_connections_of_an_endpoint_end_with_their_sandbox() -> None:
    class Waits(Told):
        async def request(self, *arguments: Any, **settings: Any) -> Response:
            connecting.set()
            return await asyncio.Future[Response]()

    connecting = asyncio.Event()
    sandbox = Bare(SandboxSpec(), "w", Waits())
    host, port = (await sandbox.endpoint(80)).split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    await connecting.wait()
    await sandbox.close()
    assert await reader.read() == b""
    writer.close()
    told: Any = sandbox.wire
    assert told.sent == [{"op": "process_drop", "id": "", "job": "1"}]


class Kept(NamedTuple):
    """A snapshot."""

    ref: str


class KeptHere(Snapshots[Kept]):
    """Snapshots that take no room."""

    async def remove(self, snapshot: Kept) -> None: ...


class Restored(SnapshotSandbox[Kept]):
    """A sandbox that is closed while its processes end for a restore."""

    def __init__(self, snapshots: KeptHere) -> None:
        super().__init__(SandboxSpec(snapshots=True), "w", snapshots)
        self.closes: asyncio.Task[None] | None = None

    async def start(self, snapshot: Kept | None) -> None:
        raise AssertionError("nothing would stop it again")

    async def end(self) -> None:
        if self.closes is None:
            self.closes = asyncio.create_task(self.close())
            await asyncio.sleep(0)

    async def keep(self) -> Kept:
        return Kept("k")

    async def launch(self, label: str, snapshot: Kept) -> Self:
        raise AssertionError("nothing is launched from a snapshot here")

    def oom_kills(self) -> int | None:
        return None

    memory_mb = cpu_s = oom_kills


async def test_a_sandbox_that_is_closed_during_a_restore_is_not_started_again() -> None:
    snapshots = KeptHere()
    ref = snapshots.add(Kept("k")).ref
    sandbox = Restored(snapshots)
    with pytest.raises(SandboxLost, match="the sandbox of w is gone: it was closed"):
        await sandbox.restore(ref)
    assert sandbox.closes is not None
    await sandbox.closes
    assert sandbox.wire.lost == "it was closed"


# Programs of ours


class Relay:
    """A program in a sandbox that says something, or nothing."""

    def __init__(self, stdout: bytes | None, stderr: bytes = b"") -> None:
        self._said = {"stdout": stdout, "stderr": stderr}

    async def read(self, stream: str = "stdout") -> bytes:
        said = self._said[stream]
        return said if said is not None else await asyncio.Future[bytes]()

    async def wait(self, timeout_s: float) -> ExecResult | None:
        return None


class Proxy(Egress):
    """A proxy that opens whatever it is asked to."""

    def open(self, path: str, allow: tuple[str, ...], label: str) -> None: ...


@pytest.mark.parametrize(
    ("relay", "why"),
    [
        (Relay(None), "no word from the relay$"),
        (Relay(b"", b"relay: [Errno 98] Address already in use\n"), "Address already in use$"),
    ],
    ids=["silent", "failed"],
)
async def test_a_relay_that_does_not_listen_fails_the_start(
    relay: Relay, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Started(Bare):
        async def spawn(self, command: str | Sequence[str], **settings: Any) -> Any:
            assert command[-1] == "/run/agentrl/wire/egress"
            return relay

    monkeypatch.setattr(egress, "START_S", 0.0 if relay._said["stdout"] is None else 30.0)
    with pytest.raises(SandboxStartFailed, match=f"the way to the egress proxy did not open: .*{why}"):
        await open_egress(Started(SandboxSpec(), "w", Told()), Proxy(), "/x/egress", ("example.com",))


def test_a_proxy_that_does_not_answer_fails_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Egress, "_say", lambda self, command: None)
    monkeypatch.setattr(egress, "START_S", 0.0)
    with pytest.raises(SandboxStartFailed, match="the egress proxy does not answer"):
        Egress().open("/x/egress", ("example.com",), "w")


async def test_a_host_without_processes_says_how_to_get_more(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*argv: str, **streams: Any) -> None:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(asyncio, "create_subprocess_exec", refuse)
    with pytest.raises(SandboxUnavailable, match=r"Resource temporarily unavailable[\s\S]*see `ulimit -a`"):
        async with carry._here("pack", "/x"):
            pass


async def test_a_program_that_carries_files_and_does_not_end_is_an_error_of_the_file() -> None:
    process: Any = Relay(b"")
    with pytest.raises(OSError, match="the program that carries it does not end") as late:
        await carry._check(process, "/work/data")
    assert (late.value.errno, late.value.filename) == (errno.ETIMEDOUT, "/work/data")
    assert await archives._said(process, None) == "no end within 60 s"


# A pool


async def test_a_pool_can_and_reaps_what_its_backend_can_and_reaps() -> None:
    class Backend:
        name = "own"
        capabilities = object()

        async def reap(self, *, dry: bool = False) -> list[str]:
            return ["folder a"] if dry else ["folder a", "folder b"]

    backend: Any = Backend()
    pool = Pool(backend, ahead=1)
    assert pool.capabilities is backend.capabilities
    assert await pool.reap(dry=True) == ["folder a"]
    assert await pool.reap() == ["folder a", "folder b"]
