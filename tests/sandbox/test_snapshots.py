"""Snapshots: what is kept, what goes on, what is refused, what is left (nothing)."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from agentrl.sandbox.namespace.backend import NamespaceBackend, NamespaceSandbox
from agentrl.sandbox.toolbox.wire import Wire
from agentrl.types.errors import SandboxError
from agentrl.types.sandbox import CapabilityMissing, SandboxLost, SandboxSpec, SandboxStartFailed
from tests.sandbox.test_backend import groups_of, processes_with
from tests.sandbox.test_exec import HEADLESS

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from agentrl.sandbox.docker.backend import DockerBackend

ABLE = SandboxSpec(snapshots=True)
# Everything of a file but its numbers on this file system: the content, the holes in it, and who else it is.
LOOK = r"""
import hashlib, json, os, sys
found = []
def look(path):
    about = os.lstat(path)
    row = [os.fsencode(path).decode("latin-1"), oct(about.st_mode), about.st_uid, about.st_mtime_ns, about.st_nlink]
    if path.startswith(b"/tmp/sock"):
        return
    if os.path.islink(path):
        row.append(os.readlink(path).decode())
    elif os.path.isfile(path):
        mode = about.st_mode & 0o7777
        os.chmod(path, mode | 0o400)
        data = open(path, "rb").read()
        row += [about.st_size, hashlib.sha256(data).hexdigest(), about.st_blocks]
        os.chmod(path, mode)
    found.append(row)
    if os.path.isdir(path) and not os.path.islink(path):
        mode = about.st_mode & 0o7777
        os.chmod(path, mode | 0o700)
        for name in sorted(os.listdir(path)):
            look(path + b"/" + name)
        os.chmod(path, mode)
look(b"/work"), look(b"/tmp")
print(json.dumps(found, indent=0))
"""
FILL = r"""
import os, socket
os.makedirs("deep/er/est"); open("deep/er/est/text", "w").write("text")
open("blob", "wb").write(os.urandom(3_000_000))
with open("holes", "wb") as file:
    file.truncate(1 << 26); file.seek(1 << 20); file.write(b"middle"); file.seek(1 << 25); file.write(b"x" * 70_000)
open("empty", "w"); os.truncate("empty", 12345)
open("secret", "w").write("s"); os.chmod("secret", 0)
os.makedirs("closed/inner"); open("closed/inner/f", "w").write("f"); os.chmod("closed/inner", 0o111)
os.chmod("closed", 0o000)
open("setuid", "w").write("u"); os.chmod("setuid", 0o6755); os.mkdir("sticky"); os.chmod("sticky", 0o3777)
os.link("blob", "deep/hard"); os.symlink("deep/er", "link"); os.link("link", "hard-link-to-link", follow_symlinks=False)
os.symlink("/nowhere", "dangling"); os.mkfifo("pipe", 0o640); os.mknod("whiteout", 0o020000)
open(b"odd\nname\xff", "w"); open(" ", "w"); open("/tmp/t", "w").write("t"); open("/dev/shm/s", "w").write("s")
s = socket.socket(socket.AF_UNIX); s.bind("/tmp/sock"); os.link("/tmp/sock", "/tmp/sock-again")
for number, name in enumerate(["deep/er/est/text", "link", "deep", "sticky", "pipe"]):
    os.utime(name, ns=(1, 981173106_123456789 + number), follow_symlinks=False)
os.chmod("/work", 0o751); os.utime("/work", ns=(1, 5_000_000_001))
"""


async def test_all_that_a_file_is_comes_back(either: NamespaceBackend | DockerBackend) -> None:
    origin = await either.create(ABLE, label="tree")
    assert (await origin.exec(["python3", "-c", FILL])).text == ""
    before = (await origin.exec(["python3", "-c", LOOK])).text
    for name in ("holes", "closed/inner/f", "odd\\nname\\u00ff", "hard-link-to-link", "whiteout"):
        assert name in before
    ref = await origin.snapshot()
    assert either.snapshots[ref].path.stat().st_size < 4_000_000  # holes take no room
    assert (await origin.exec(["python3", "-c", LOOK])).text == before
    await origin.exec("chmod 700 closed; rm -rf * .[!.]* /tmp/*; echo new > blob; ln -s / deep")
    await origin.restore(ref)
    assert (await origin.exec(["python3", "-c", LOOK])).text == before
    fork, other = await origin.fork(2)
    assert (fork.label, other.label) == ("tree.0", "tree.1")
    for each in (fork, other):
        assert (await each.exec(["python3", "-c", LOOK])).text == before
        assert (await each.exec("ls -A /dev/shm; test ! -e /tmp/sock -a ! -e /tmp/sock-again")).text == ""


async def test_a_hole_takes_no_room_on_the_host(either: NamespaceBackend | DockerBackend) -> None:
    sandbox = await either.create(ABLE)
    await sandbox.exec("echo text > file; truncate -s 1T hole; truncate -s 1T /tmp/hole")
    ref = await sandbox.snapshot()
    assert either.snapshots[ref].path.stat().st_size < 4096
    await sandbox.exec("rm hole file")
    await sandbox.restore(ref)
    assert (await sandbox.exec("cat file; stat -c %s hole /tmp/hole")).text == f"text\n{1 << 40}\n{1 << 40}\n"


async def test_what_is_kept_is_bounded(either: NamespaceBackend | DockerBackend) -> None:
    sandbox = await either.create(SandboxSpec(snapshots=True, disk_mb=4))
    assert not (await sandbox.exec("head -c 5M /dev/zero > large")).ok
    await sandbox.exec(["python3", "-c", "import os\nfor _ in range(10_000): os.mkdir('d'); os.chdir('d')"])
    with suppress(OSError):
        await sandbox.snapshot()
    assert (await sandbox.exec("echo on")).text == "on\n"


async def test_a_workdir_of_ones_own_and_the_specs_setup(either: NamespaceBackend | DockerBackend) -> None:
    spec = SandboxSpec(snapshots=True, workdir="/tmp/deep/work", setup=("echo ran >> setup",), disk_mb=8)
    origin = await either.create(spec)
    await origin.exec("echo t > /tmp/t")
    (fork,) = await origin.fork(1)
    assert (await fork.exec("cat setup ../../t; pwd")).text == "ran\nt\n/tmp/deep/work\n"


COUNT = """
n = 0
while True:
    n += 1
    for name in ("/work/one", "/tmp/two"):
        with open(name, "w") as file: file.write(f"{n:9}")
"""


async def test_programs_are_held_still_and_go_on(backend: NamespaceBackend) -> None:
    sandbox = await backend.create(ABLE)
    shell = await sandbox.session()
    await shell.run("kept=5; sleep 1000 & kill -STOP $!; stopped=$!")
    writer = await sandbox.spawn(["python3", "-c", COUNT])
    await sandbox.exec("until test -s /tmp/two; do sleep 0.01; done; head -c 30000000 /dev/zero > between")
    running = asyncio.create_task(sandbox.exec("sleep 0.2; echo slept"))
    one, two = await asyncio.gather(sandbox.snapshot(), sandbox.snapshot())
    assert (await running).text == "slept\n"
    told = await shell.run("echo $kept; cut -d' ' -f3 /proc/$stopped/stat")
    assert told.text == "5\nT\n"  # what stood still before stands still now
    count = await sandbox.read("one")
    while await sandbox.read("one") == count:
        pass
    await writer.kill()
    for ref in (one, two):
        await sandbox.restore(ref)
        first, second = await sandbox.read("one"), await sandbox.read("/tmp/two")
        # Writing is two steps, emptying and filling, so that one file may be empty; else they are one step apart.
        assert b"" in (first, second) or 0 <= int(first) - int(second) <= 1


HOLD = """
import glob, os, sys
sys.path.append("/run/agentrl/tools")
import archive
held = archive.hold()
running, before = archive.running(), os.stat("/tmp/count").st_mtime_ns
tasks = glob.glob(f"/proc/{sys.argv[1]}/task/*/stat")
states = [open(task).read().rpartition(")")[2].split()[0] for task in tasks for _ in range(1000)]
print(running, len(tasks), *sorted({*states}), before == os.stat("/tmp/count").st_mtime_ns)
archive.release([])
"""


async def test_a_program_without_its_main_thread_is_held_still(sandbox: NamespaceSandbox) -> None:
    program = await sandbox.spawn(["python3", "-c", HEADLESS])
    await sandbox.exec(f"until grep -q ') Z' /proc/{program.pid}/stat && test -s /tmp/count; do sleep 0.01; done")
    assert (await sandbox.exec(["python3", "-c", HOLD, str(program.pid)])).text == "[] 2 T Z True\n"
    count = await sandbox.read("/tmp/count")
    while await sandbox.read("/tmp/count") in (count, b""):
        pass


async def test_snapshots_go_with_their_last_fork_and_with_the_backend(backend: NamespaceBackend) -> None:
    sandbox = await backend.create(ABLE)
    await sandbox.write("file", "x")
    kept = len(backend.snapshots)
    one, two = await sandbox.fork(2)
    place = backend._host.folder
    assert len(list(place.glob("snapshot-*"))) == len(backend.snapshots) == kept + 1
    await one.close()
    await one.close()
    assert len(backend.snapshots) == kept + 1
    await two.close()
    assert len(list(place.glob("snapshot-*"))) == len(backend.snapshots) == kept
    ref = await sandbox.snapshot()
    path = backend.snapshots[ref].path
    assert path.stat().st_mode & 0o777 == 0o600
    await backend.close()
    assert not path.exists()
    assert len(backend.snapshots) == 0


async def test_what_is_refused(backend: NamespaceBackend) -> None:
    plain = await backend.create(SandboxSpec())
    for attempt in (plain.snapshot(), plain.fork(2), plain.restore("x")):
        with pytest.raises(CapabilityMissing, match="snapshots: true"):
            await attempt
    able = await backend.create(ABLE)
    with pytest.raises(KeyError):
        await able.restore("snapshot-1")
    with pytest.raises(ValueError, match="one sandbox or more"):
        await able.fork(0)
    assert (await able.exec("true")).ok
    await able.close()
    for attempt in (able.snapshot(), able.fork(1)):
        with pytest.raises(SandboxLost):
            await attempt


async def test_what_does_not_fit_loses_the_sandbox_and_says_so(backend: NamespaceBackend) -> None:
    large = await backend.create(SandboxSpec(snapshots=True, disk_mb=32))
    await large.exec("head -c 20M /dev/urandom > big")
    ref = await large.snapshot()
    small = await backend.create(SandboxSpec(snapshots=True, disk_mb=4))
    with pytest.raises(SandboxStartFailed, match="No space left"):
        await small.restore(ref)
    with pytest.raises(SandboxLost):
        await small.exec("true")


async def test_a_sandbox_whose_time_is_over_cannot_be_restored(
    backend: NamespaceBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, meanwhile = await backend.create(ABLE), await backend.create(ABLE)
    ref = await before.snapshot()
    before._expire()
    end = meanwhile.end

    async def slow_end() -> None:
        await end()
        meanwhile._expire()

    with monkeypatch.context() as patch:
        patch.setattr(meanwhile, "end", slow_end)
        for sandbox in (before, meanwhile):
            with pytest.raises(SandboxLost, match="its ttl_s of 3600 s is over"):
                await sandbox.restore(ref)
            with pytest.raises(SandboxLost):
                await sandbox.exec("true")
            assert sandbox not in backend._alive


async def test_a_host_that_is_out_of_something_is_a_failed_restore(
    backend: NamespaceBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    able = await backend.create(ABLE)
    ref = await able.snapshot()

    async def exhausted(snapshot: Any) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(able, "start", exhausted)
    with pytest.raises(SandboxStartFailed, match="Too many open files"):
        await able.restore(ref)
    with pytest.raises(SandboxLost):
        await able.exec("true")


async def test_what_was_open_before_a_restore_is_lost(
    backend: NamespaceBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = await backend.create(ABLE)
    ref = await sandbox.snapshot()
    shell, kernel = await sandbox.session(), await sandbox.python()
    await shell.run("x=5")
    process = await sandbox.spawn("cat")
    end = sandbox.end

    async def end_while_a_shell_is_asked_for() -> None:
        await sandbox.session()
        await end()

    with monkeypatch.context() as patch:
        patch.setattr(sandbox, "end", end_while_a_shell_is_asked_for)
        await sandbox.restore(ref)
    while sandbox.wire._last_id < int(process._id) - 1:
        await sandbox.exec("true")
    other = await sandbox.spawn("cat")  # what has the number now
    attempts = (
        process.write(b"x"),
        process.close_stdin(),
        process.wait(1),
        process.kill(),
        shell.run("true"),
        shell.restart(),
        kernel.run("1"),
    )
    for attempt in attempts:
        with pytest.raises(SandboxLost, match="it was restored"):
            await attempt
    process.drop()
    await shell.interrupt()
    await other.write(b"heard")
    assert await other.read() == b"heard"
    assert (await (await sandbox.session()).run("echo $x")).text == "\n"


async def test_a_fork_that_fails_closes_the_others(backend: NamespaceBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = await backend.create(ABLE)
    put_back, kept, alive = backend.snapshots.put_back, len(backend.snapshots), len(backend._alive)
    started = 0

    async def third_fails(*args: Any) -> None:
        nonlocal started
        started += 1
        if started == 3:
            raise SandboxStartFailed("no luck")
        await put_back(*args)

    monkeypatch.setattr(backend.snapshots, "put_back", third_fails)
    with pytest.raises(SandboxStartFailed, match="no luck"):
        await sandbox.fork(4)
    assert (len(backend.snapshots), len(backend._alive)) == (kept, alive)


async def test_what_cannot_be_kept_is_an_error_and_leaves_nothing(
    backend: NamespaceBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = await backend.create(ABLE)
    shell = await sandbox.session()
    await shell.run("kept=5")
    await sandbox.exec("head -c 5M /dev/urandom > big")
    place, taken = backend._host.folder, len(list(backend._host.folder.glob("snapshot-*")))

    def full(path: Path) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    with monkeypatch.context() as patch:
        patch.setattr("agentrl.sandbox.toolbox.archives._new", full)
        with pytest.raises(OSError, match="No space left"):
            await sandbox.snapshot()
    keep = backend.snapshots.keep
    with monkeypatch.context() as patch:
        patch.setattr(backend.snapshots, "keep", lambda box, python, folder, _: keep(box, python, folder, 1))
        with pytest.raises(OSError, match="more than 2 MiB"):
            await sandbox.snapshot()
    # A tree that no path reaches.
    dig = "import os\nfor _ in range(30): os.mkdir('d' * 200); os.chdir('d' * 200)"
    assert (await sandbox.exec(["python3", "-c", dig])).ok
    with pytest.raises(OSError, match="File name too long"):
        await sandbox.snapshot()
    assert len(list(place.glob("snapshot-*"))) == taken
    assert (await shell.run("echo $kept")).text == "5\n"  # nothing stays stopped


async def test_a_packer_that_is_killed_leaves_nobody_stopped(backend: NamespaceBackend) -> None:
    sandbox = await backend.create(ABLE)
    shell = await sandbox.session()
    await shell.run("kept=5")
    await sandbox.exec("head -c 150M /dev/urandom > big")
    taken = len(list(backend._host.folder.glob("snapshot-*")))
    packing = asyncio.create_task(sandbox.snapshot())
    os.kill(await packer_at_work(sandbox), signal.SIGKILL)
    with pytest.raises(OSError, match="signal"):
        await packing
    assert (await shell.run("echo $kept", timeout_s=20)).text == "5\n"
    packing = asyncio.create_task(sandbox.snapshot())
    await packer_at_work(sandbox)
    packing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await packing
    assert (await shell.run("echo $kept", timeout_s=20)).text == "5\n"
    assert len(list(backend._host.folder.glob("snapshot-*"))) == taken


async def test_a_snapshot_that_is_cancelled_at_its_start_leaves_nobody_stopped(
    backend: NamespaceBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = await backend.create(ABLE)
    shell = await sandbox.session()
    await shell.run("kept=5")
    await sandbox.exec("head -c 50M /dev/urandom > big")
    request = sandbox.wire.request

    async def cancelled(op: str, *args: Any, **more: Any) -> Any:
        reply = await request(op, *args, **more)
        if op == "spawn":
            os.kill(await packer_at_work(sandbox), signal.SIGKILL)
            raise asyncio.CancelledError
        return reply

    with monkeypatch.context() as patch, pytest.raises(asyncio.CancelledError):
        patch.setattr(sandbox.wire, "request", cancelled)
        await sandbox.snapshot()
    result = await shell.run("echo $kept", timeout_s=20)
    assert (result.outcome, result.text) == ("ok", "5\n")


async def packer_at_work(sandbox: NamespaceSandbox) -> int:
    """Waits until the packer of a sandbox has stopped its shell; the packer's pid on the host."""
    toolbox = sandbox._tree.init_pid
    while True:
        state = {}
        for pid in map(int, Path(f"/proc/{toolbox}/task/{toolbox}/children").read_text().split()):
            with suppress(OSError):
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
                name = "packer" if b"archive.pyc\0pack" in command else command.split(b"\0")[0].decode()
                state[name] = pid, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        if "packer" in state and state["bash"][1] == "T":
            return state["packer"][0]
        await asyncio.sleep(0)  # what it packs goes through this loop, so that it cannot be over in between


async def test_closing_in_the_middle_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    backend, request, asked = NamespaceBackend(), Wire.request, 0

    async def counted(self: Wire, *args: Any, **more: Any) -> Any:
        nonlocal asked
        asked += 1
        return await request(self, *args, **more)

    async def has_asked(calls: int, task: asyncio.Task[Any]) -> None:
        """Returns when sandboxes were asked so often, or at the end of a task."""
        most = asked + calls
        while asked < most and not task.done():
            await asyncio.sleep(0)

    monkeypatch.setattr(Wire, "request", counted)
    try:
        sandbox = await backend.create(ABLE)
        await sandbox.write("file", bytes(3 << 20))
        ref = await sandbox.snapshot()
        for calls in (0, 1, 3, 8):
            sandbox = await backend.create(ABLE)
            restoring = asyncio.create_task(sandbox.restore(ref))
            await has_asked(calls, restoring)
            await sandbox.close()
            (raised,) = await asyncio.gather(restoring, return_exceptions=True)
            assert raised is None or isinstance(raised, SandboxError)
            with pytest.raises(SandboxLost):
                await sandbox.exec("true")
            forking = asyncio.create_task((fresh := await backend.create(ABLE)).fork(3))
            await has_asked(2 * calls, forking)
            forking.cancel()
            await asyncio.gather(forking, return_exceptions=True)
            await asyncio.gather(fresh.close(), *(each.close() for each in _forks(forking)))
        folder = f"{backend._host.folder}/"
        assert len(backend._alive) == 1  # the first
    finally:
        await backend.close()
    assert processes_with(folder) == []
    assert groups_of(backend._host.label) == []
    assert not Path(folder).exists()


def _forks(task: asyncio.Task[Any]) -> list[Any]:
    return [] if task.cancelled() or task.exception() else task.result()


async def test_a_restored_sandbox_keeps_its_egress_its_endpoints_and_its_time(backend: NamespaceBackend) -> None:
    spec = SandboxSpec(snapshots=True, network={"allow": ("example.org",)}, ttl_s=60)
    sandbox = await backend.create(spec)
    ref = await sandbox.snapshot()
    address, ttl = await sandbox.endpoint(61082), sandbox._ttl
    await sandbox.restore(ref)
    assert sandbox._ttl is ttl
    assert await sandbox.endpoint(61082) == address
    ask = "exec 3<>/dev/tcp/127.0.0.1/3128; printf 'CONNECT evil.test:443 HTTP/1.1\\r\\n\\r\\n' >&3; head -n 1 <&3"
    assert "403" in (await sandbox.exec(ask)).text
    assert len(list(backend._host.folder.glob("out-*"))) == 1
    await sandbox.close()
    assert list(backend._host.folder.glob("out-*")) == []
