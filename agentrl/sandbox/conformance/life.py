"""Checks of the start and end of sandboxes: they leave nothing behind."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from agentrl.sandbox.conformance.arena import Arena, Broken, expect
from agentrl.sandbox.conformance.check import check
from agentrl.types.errors import AgentRLError, InfraError
from agentrl.types.sandbox import CapabilityMissing, Sandbox, SandboxLost, SandboxStartFailed
from agentrl.types.stdlib import piped


def _nap() -> str:
    """Returns a random number of seconds that identifies a `sleep` process."""
    return f"{random.randrange(10**8, 10**9)}"


def _sleepers(nap: str) -> list[str]:
    """Returns the processes of the host, sandboxes included, with the number as an argument."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if nap.encode() in (folder / "cmdline").read_bytes().split(b"\0"):
                found.append(folder.name)
    return found


async def _asleep(nap: str, number: int) -> bool:
    """Waits until that many processes have the number as an argument; False if they do not appear."""
    for _ in range(400):
        if len(_sleepers(nap)) == number:
            return True
        await asyncio.sleep(0.05)
    return False


@check()
async def clock(arena: Arena) -> None:
    """The clock of a sandbox is the host's, and cannot be set."""
    sandbox = await arena.open()
    told = float((await sandbox.exec(["date", "+%s.%N"])).text)
    expect(abs(told - time.time()) < 30, f"it is {told - time.time():+.1f} s off")
    expect(not (await sandbox.exec(["date", "-s", "2001-01-01"])).ok, "the clock can be set")
    expect(abs(time.time() - told) < 600, "the host's clock was set")


@check()
async def ttl(arena: Arena) -> None:
    """A sandbox older than its ttl_s is lost, whatever it does; its processes are gone."""
    nap = _nap()
    try:
        sandbox = await arena.open(ttl_s=1.0)
        await sandbox.exec(["sleep", nap], timeout_s=60)
    except SandboxLost:
        await arena.clean()
        expect(await _asleep(nap, 0), "its processes run on")
        return
    raise Broken("it outlived its time")


@check()
async def closing_ends_everything(arena: Arena) -> None:
    """A closed sandbox leaves no process; calls in flight and later ones raise SandboxLost; closing twice is fine."""
    nap = _nap()
    sandbox = await arena.open()
    await (await sandbox.session()).run(f"setsid nohup sleep {nap} >/dev/null 2>&1 &")
    flight = asyncio.create_task(sandbox.exec(["sleep", nap]))
    await asyncio.sleep(0.2)
    await asyncio.gather(sandbox.close(), sandbox.close())
    expect(await _asleep(nap, 0), "processes run on")
    for call in (flight, sandbox.exec("true"), sandbox.read("file"), (await sandbox.session()).run("true")):
        try:
            await call
        except SandboxLost:
            continue
        raise Broken("a call did not raise SandboxLost")
    expect(not (await sandbox.health()).alive, "it is said to be alive")


@check()
async def many_at_once(arena: Arena) -> None:
    """Sixteen sandboxes are made at the same time and are independent."""
    boxes = await arena.open_many(16)
    await asyncio.gather(*(box.write("me", str(n)) for n, box in enumerate(boxes)))
    told = await asyncio.gather(*(box.exec(["cat", "me"]) for box in boxes))
    expect([each.text for each in told] == [str(n) for n in range(16)], "they are mixed up")


@check()
async def files_and_setup(arena: Arena) -> None:
    """Files of the spec exist before its setup commands, which run before all other commands."""
    sandbox = await arena.open(files={"in/a": "text", "/tmp/b": b"\0\1"}, setup=("cp in/a made", "test -f made"))
    expect(await sandbox.read("made") == b"text" and await sandbox.read("/tmp/b") == b"\0\1", "files are missing")


@check()
async def a_failed_start_leaves_nothing(arena: Arena) -> None:
    """A failed start names the command and its error; a cancelled one ends; neither leaves a process."""
    nap = _nap()
    try:
        await arena.open(setup=(f"setsid sleep {nap} & echo why; exit 3",))
    except SandboxStartFailed as error:
        expect("exit 3" in str(error) and "why" in str(error), f"the error does not tell: {error}")
    else:
        raise Broken("a failed setup command is not an error")
    for delay in (0.0, 0.01, 0.1):
        task = asyncio.create_task(arena.open(setup=(f"sleep {nap}",)))
        await asyncio.sleep(delay)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    expect(await _asleep(nap, 0), "processes run on")


@check()
async def a_bad_spec_is_refused_beforehand(arena: Arena) -> None:
    """Missing images, unenforceable limits and limits beyond this machine are refused in preflight, by field."""
    known = arena.backend.capabilities
    asked: list[tuple[str, dict[str, Any]]] = [
        ("rootfs", {"rootfs": "/no/such/folder"}),
        ("image", {"image": "agentrl/no-such-image"}),
    ]
    asked += [("network", {"network": network}) for network in ("public",) if network not in known.networks]
    if "allow" not in known.networks:
        asked.append(("network", {"network": {"allow": ("example.com",)}}))
    if not known.snapshots:
        asked.append(("snapshots", {"snapshots": True}))
    asked += [("cpu", {"cpu": 1e6}), ("memory_mb", {"memory_mb": 1 << 40})]
    for key, means, value in (
        ("cpu", known.cpu, 1.0),
        ("memory_mb", known.memory, 64),
        ("pids", known.pids, 64),
        ("disk_mb", known.disk, 64),
    ):
        if means == "none":
            asked.append((key, {key: value}))
    for key, changes in asked:
        try:
            arena.backend.preflight(arena.spec(**changes))
        except AgentRLError as error:
            told = f"{error.place} {error.message} {error.remedy}"
            expect(key in told or str(changes[key]) in told, f"the refusal of {changes} does not name it: {error}")
            expect(error.remedy, f"the refusal of {changes} has no remedy: {error}")
            retried = isinstance(error, CapabilityMissing) and isinstance(error, InfraError)
            expect(not retried, "a refusal counts as a failure that is worth another attempt")
            continue
        raise Broken(f"{changes} is accepted")


def _traces(owner: int) -> list[str]:
    """Returns the folders and control groups of this machine with an owner's label."""
    mark = f"agentrl-{owner}-"
    groups = [f"{base}/{name}" for base, names, _ in os.walk("/sys/fs/cgroup") for name in names if mark in name]
    return sorted(map(str, Path(tempfile.gettempdir()).glob(f"{mark}*"))) + sorted(groups)


@check()
async def a_killed_driver_leaves_nothing(arena: Arena) -> None:
    """After SIGKILL of the driver, reaping leaves no process, folder, group or container, and spares the living."""
    nap = _nap()
    bystander = await arena.open()
    words = [sys.executable, "-m", "agentrl.sandbox.conformance.driver", arena.address]
    words += [arena.base.model_dump_json(exclude_unset=True), nap]
    path = os.pathsep.join(filter(None, [*sys.path, os.environ.get("PYTHONPATH")]))
    driver = await asyncio.create_subprocess_exec(
        *words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path}
    )
    if await piped(driver.stdout).readline() != b"ready\n":
        raise Broken(f"the driver did not come up: {(await piped(driver.stderr).read()).decode()[-500:]}")
    await asyncio.sleep(0.3)  # its last command, which it cannot report, must have started
    driver.kill()
    await driver.wait()
    await arena.backend.reap()
    expect(await _asleep(nap, 0), "processes run on")
    for _ in range(20):  # other drivers on this machine may be killed at the same time
        if not (left := await arena.backend.reap(dry=True)):
            break
        await asyncio.sleep(0.1)
    expect(not left, f"left after reaping: {left}")
    expect(not _traces(driver.pid), f"left after reaping: {_traces(driver.pid)}")
    expect((await bystander.exec("echo on")).stdout == b"on\n", "reaping killed a sandbox of a living driver")


_STATE = """
set -e
mkdir -p deep/folder; echo text > deep/folder/file; head -c 100000 /dev/urandom > data
chmod 600 data; chmod 751 deep; ln -s deep/folder/file link; ln -s /nowhere dangling; ln data hard
touch -d '2001-02-03 04:05:06' deep/folder/file; echo tmp > /tmp/in-tmp; mkdir empty; touch 'odd
name' .hidden
mkfifo pipe; echo secret > unreadable; chmod 0 unreadable; echo program > setuid; chmod 4755 setuid
"""
# Link count and size of a folder depend on the file system, not the sandbox; engines preserve whole seconds.
_LOOK = """
{ find . /tmp -mindepth 1 -type d -printf '%p %m\\n' | sort
  find . /tmp ! -type d -printf '%p %y %m %l %n %s\\n' | sort
  find . -type f -printf '%p %TF %TH:%TM:%.2TS\\n' | sort
  find . /tmp -type f -exec sha256sum {} + 2>/dev/null | sort; } | sha256sum
"""


async def _state(sandbox: Sandbox) -> str:
    return (await sandbox.exec(_LOOK, timeout_s=300)).text


@check(lambda known: "" if known.snapshots else "the backend cannot snapshot")
async def holes_are_no_content_of_snapshots(arena: Arena) -> None:
    """A hole of 1 TB does not fill the host's disk: the snapshot is refused, or fast, and restores the hole."""
    sandbox = await arena.open(snapshots=True)
    made = await sandbox.exec("echo text > file; truncate -s 1T hole || truncate -s 8G hole; stat -c %s hole")
    free = shutil.disk_usage(tempfile.gettempdir()).free
    try:
        async with asyncio.timeout(60):
            ref = await sandbox.snapshot()
    except TimeoutError:
        raise Broken("a snapshot of a hole does not end") from None
    except OSError:
        expect((await sandbox.exec(["cat", "file"])).text == "text\n", "a refused snapshot broke the sandbox")
        return
    left = shutil.disk_usage(tempfile.gettempdir()).free
    expect(free - left < 4 << 30, f"it took {free - left >> 20} MiB of the host's disk")
    await sandbox.exec("rm file hole")
    await sandbox.restore(ref)
    expect((await sandbox.exec("stat -c %s hole; cat file")).text == f"{made.text}text\n", "what was restored differs")


@check(lambda known: "" if known.snapshots else "the backend cannot snapshot")
async def snapshots_are_exact(arena: Arena) -> None:
    """Snapshot, fork and restore preserve files, modes, links and seconds exactly; forks are independent, without
    processes.
    """
    nap = _nap()
    sandbox = await arena.open(snapshots=True)
    expect((await sandbox.exec(_STATE)).ok, "the files to keep could not be made")
    before = await _state(sandbox)
    ref = await sandbox.snapshot()
    expect(await _state(sandbox) == before, "the snapshot changed what it kept")
    await sandbox.spawn(["sleep", nap])
    await sandbox.exec("rm -rf deep data; echo new > later; chmod 777 link empty; echo > /tmp/later")
    forks = await sandbox.fork(2)
    try:
        changed = await _state(sandbox)
        expect([await _state(fork) for fork in forks] == [changed] * 2, "a fork differs from what was forked")
        await forks[0].exec("echo other > later")
        expect(await _state(sandbox) == changed and await _state(forks[1]) == changed, "forks are not apart")
        expect(len(_sleepers(nap)) <= 1, "a process was forked")
    finally:
        await asyncio.gather(*(fork.close() for fork in forks))
    for _ in range(2):
        await sandbox.restore(ref)
        expect(await _state(sandbox) == before, "what was restored differs")
        expect(await _asleep(nap, 0), "a process survived")
    expect((await (await sandbox.session()).run("pwd")).ok, "sessions do not work after a restore")
