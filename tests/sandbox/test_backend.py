"""Making and losing sandboxes; what is refused; what is left behind (nothing)."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from agentrl.sandbox.namespace.backend import NamespaceBackend, NamespaceSandbox
from agentrl.sandbox.registry import open_backend
from agentrl.types.errors import AgentRLError, InfraError, RecipeError
from agentrl.types.paths import data_path
from agentrl.types.sandbox import (
    CapabilityMissing,
    SandboxLost,
    SandboxSpec,
    SandboxStartFailed,
    SandboxUnavailable,
)
from tests.sandbox.rootfs import build_rootfs, copyable
from tests.waiting import running_program, stop, until, until_async

pytestmark = pytest.mark.slow


def processes_with(text: str) -> list[int]:
    """Host pids whose command line holds `text`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if text.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


async def running(command: str) -> None:
    """Returns when the host sees a program of a sandbox: `sleep 1000`."""
    await until_async(lambda: processes_with(command.replace(" ", "\0")))


def groups_of(label: str) -> list[str]:
    return [name for _, names, _ in os.walk("/sys/fs/cgroup") for name in names if f"agentrl-{label}" in name]


def test_an_unknown_backend_names_the_nearest() -> None:
    with pytest.raises(RecipeError, match=r"namspace[\s\S]*did you mean 'namespace'"):
        open_backend("namspace")


@pytest.mark.parametrize(
    ("spec", "key"),
    [
        (SandboxSpec(network="public"), "network"),
        (SandboxSpec(cpu=1000), "cpu"),
        (SandboxSpec(memory_mb=1 << 34), "memory_mb"),
    ],
)
def test_what_cannot_be_enforced_is_refused_beforehand(spec: SandboxSpec, key: str) -> None:
    backend = NamespaceBackend()
    with pytest.raises(CapabilityMissing, match=f"sandbox.spec.{key}") as caught:
        backend.preflight(spec)
    assert not isinstance(caught.value, InfraError)


def test_bounds_that_need_cgroups_are_refused_without() -> None:
    backend = NamespaceBackend(cgroups=False)
    backend.preflight(SandboxSpec(pids=100))
    for spec in (SandboxSpec(memory_mb=100), SandboxSpec(cpu=1)):
        with pytest.raises(CapabilityMissing):
            backend.preflight(spec)


def test_without_bubblewrap_the_remedy_is_a_command() -> None:
    with pytest.raises(SandboxUnavailable, match="apt-get install -y bubblewrap"):
        NamespaceBackend(bwrap="no-such-bwrap").preflight(SandboxSpec())


def test_where_namespaces_are_forbidden_the_remedy_is_a_command(tmp_path: Path) -> None:
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2; exit 1\n")
    fake.chmod(0o755)
    with pytest.raises(SandboxUnavailable, match=r"No permissions[\s\S]*sysctl"):
        NamespaceBackend(bwrap=str(fake)).preflight(SandboxSpec())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_a_full_disk_is_told_beforehand_and_nothing_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "none", tmp_path], check=False)
    if mounted.returncode != 0:
        pytest.skip("mounting is not allowed here")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    try:
        with pytest.raises(SandboxUnavailable, match=r"No space left[\s\S]*TMPDIR"):
            NamespaceBackend().preflight(SandboxSpec())
        assert list(tmp_path.iterdir()) == []
    finally:
        subprocess.run(["umount", tmp_path], check=True)


async def test_what_a_sandbox_cannot_do_is_refused(sandbox: NamespaceSandbox) -> None:
    assert (await sandbox.exec(["id", "-un"], user="agent")).text == "agent\n"
    with pytest.raises(CapabilityMissing, match="'root'"):
        await sandbox.exec(["id"], user="root")
    with pytest.raises(CapabilityMissing, match=r"snapshot[\s\S]*snapshots"):
        await sandbox.fork(2)


def test_a_bad_rootfs_is_refused(tmp_path: Path) -> None:
    backend = NamespaceBackend()
    with pytest.raises(SandboxUnavailable, match="no folder"):
        backend.preflight(SandboxSpec(rootfs=str(tmp_path / "missing")))
    with pytest.raises(SandboxUnavailable, match="python3"):
        backend.preflight(SandboxSpec(rootfs=str(tmp_path)))


@pytest.mark.skipif(not copyable(), reason="the image is made of python3, bash and cat of the host")
async def test_a_rootfs_of_ones_own(backend: NamespaceBackend, public_folder: Path) -> None:
    build_rootfs(public_folder)
    sandbox = await backend.create(SandboxSpec(rootfs=str(public_folder)))
    assert (await sandbox.exec("cat /etc/mine")).text == "my own"
    assert not (await sandbox.exec(["/usr/bin/ls"])).ok
    assert (await (await sandbox.python()).run("1 + 1")).value == "2"


@pytest.mark.skipif(not copyable(), reason="the image is made of python3, bash and cat of the host")
async def test_writable_folders_beside_those_of_an_image(backend: NamespaceBackend, public_folder: Path) -> None:
    build_rootfs(public_folder)
    (public_folder / "opt" / "theirs").mkdir(parents=True)
    (public_folder / "opt" / "note").write_text("theirs, too")
    sandbox = await backend.create(SandboxSpec(rootfs=str(public_folder), writable=("/opt/data", "/srv/made")))
    told = await sandbox.exec(
        "cat /opt/note; cd /opt/theirs && echo ran > /opt/data/x && cat /opt/data/x && cd /srv/made"
    )
    assert (told.ok, told.text) == (True, "theirs, tooran\n")
    assert not (await sandbox.exec("echo > /opt/beside")).ok


async def test_sixty_four_at_once(backend: NamespaceBackend) -> None:
    boxes = await asyncio.gather(*(backend.create(SandboxSpec(), label=str(n)) for n in range(64)))
    results = await asyncio.gather(*(box.exec(["echo", box.label]) for box in boxes))
    assert [result.text for result in results] == [f"{n}\n" for n in range(64)]
    await asyncio.gather(*(box.close() for box in boxes))


def open_files() -> set[tuple[str, str]]:
    """Descriptors of this process and what they are of: others, which open some meanwhile, change none of these."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            found.add((number, os.readlink(f"/proc/self/fd/{number}")))
    return found


async def test_closing_leaves_nothing() -> None:
    backend = NamespaceBackend()
    sandbox = await backend.create(SandboxSpec(cpu=1.0 if backend.capabilities.cpu != "none" else None))
    label = backend._host.label
    await (await sandbox.session()).run("setsid sleep 98761 & ")
    folder = backend._host._folder
    assert folder is not None
    assert folder.exists()
    pending = asyncio.create_task(sandbox.exec("sleep 98761"))
    await until_async(lambda: len(processes_with("sleep\x0098761")) == 2)
    descriptors = open_files()
    await asyncio.gather(sandbox.close(), sandbox.close())
    assert processes_with("98761") == []
    with pytest.raises(SandboxLost, match="closed"):
        await pending
    with pytest.raises(SandboxLost, match="closed"):
        await sandbox.exec("true")
    assert not (await sandbox.health()).alive
    await until_async(lambda: len(descriptors - open_files()) >= 2)
    await backend.close()
    await backend.close()
    assert not folder.exists()
    assert groups_of(label) == []


async def test_a_killed_sandbox_is_lost_not_a_result(backend: NamespaceBackend) -> None:
    sandbox = await backend.create(SandboxSpec(), label="episode-7")
    pending = asyncio.create_task(sandbox.exec("sleep 98767"))
    await running("sleep 98767")
    os.kill(sandbox._tree.init_pid, signal.SIGKILL)
    with pytest.raises(SandboxLost, match="episode-7"):
        await pending
    with pytest.raises(SandboxLost):
        await (await sandbox.session()).run("true")
    await sandbox.close()


async def test_a_silent_sandbox_is_lost(sandbox: NamespaceSandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentrl.sandbox.toolbox.wire.MARGIN_S", 0.2)
    monkeypatch.setattr("agentrl.sandbox.toolbox.postmortem._LOOK_S", 0.1)
    stop(sandbox._tree.init_pid)
    with pytest.raises(SandboxLost, match="no answer"):
        await sandbox.exec("true", timeout_s=0.1)
    await sandbox.close()


async def test_ttl(backend: NamespaceBackend) -> None:
    with pytest.raises(SandboxLost, match="ttl_s"):
        await (await backend.create(SandboxSpec(ttl_s=0.3))).exec("sleep 1000")


async def test_a_start_that_fails_says_why(backend: NamespaceBackend) -> None:
    with pytest.raises(SandboxStartFailed, match="bwrap"):
        await backend.create(SandboxSpec(workdir="/proc/1/nowhere"))


async def test_a_cancelled_start_leaves_nothing(backend: NamespaceBackend) -> None:
    stages: list[Callable[[], object]] = [
        lambda: True,
        lambda: backend._alive,
        lambda: any(each._tree._process for each in backend._alive),
        lambda: processes_with("/work/98762"),
        lambda: any(each.wire._last_id for each in backend._alive),
    ]
    for reached in stages:
        task = asyncio.create_task(backend.create(SandboxSpec(workdir="/work/98762")))
        while not reached() and not task.done():
            await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError):  # it may have been quicker
            await (await task).close()
    await until_async(lambda: not processes_with("/work/98762"))
    assert not backend._alive


DRIVER = """
import asyncio
from agentrl.sandbox.registry import open_backend
from agentrl.types.sandbox import SandboxSpec
async def main():
    backend = open_backend("namespace")
    sandbox = await backend.create(SandboxSpec())
    await (await sandbox.session()).run("setsid nohup sleep 98763 >/dev/null 2>&1 &")
    await sandbox.spawn("setsid sleep 98763 & sleep 98763")
    print(backend._host.label, backend._host._folder, flush=True)
    await sandbox.exec("sleep 98763")
asyncio.run(main())
"""


def test_nothing_survives_a_killed_driver() -> None:
    with running_program([sys.executable, "-c", DRIVER]) as driver:
        assert driver.stdout is not None
        label, folder = driver.stdout.readline().split()
        until(lambda: len(processes_with("sleep\x0098763")) == 4)
    until(lambda: not processes_with("98763"))
    assert Path(folder).exists()
    backend = NamespaceBackend()  # the next one cleans up
    assert backend.capabilities
    assert not Path(folder).exists()
    assert groups_of(label) == []
    asyncio.run(backend.close())


def test_data_files_are_found() -> None:
    assert data_path("tools", "toolbox", "toolbox.py").is_file()
    with pytest.raises(AgentRLError, match="no/such"):
        data_path("no", "such")
