"""The namespace backend on a machine that lacks something, is full, or whose processes do not end."""

from __future__ import annotations

import asyncio
import errno
import io
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agentrl.sandbox.linux.cgroups import Cgroup
from agentrl.sandbox.namespace import backend as backends
from agentrl.sandbox.namespace import own_copy, rootfs, tree
from agentrl.sandbox.namespace.backend import NamespaceBackend, NamespaceSandbox
from agentrl.sandbox.namespace.rootfs import Host, OwnCopies, RootFS, reap_folders
from agentrl.sandbox.namespace.tree import ProcessTree
from agentrl.sandbox.owner import new_label
from agentrl.types.sandbox import ExecResult, SandboxSpec, SandboxStartFailed, SandboxUnavailable

FULL = OSError(errno.ENOSPC, "No space left on device")


def refuse(*arguments: object, **settings: object) -> None:
    raise FULL


# The host


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    """A host whose folder exists, and which can make sandboxes, as it believes."""
    made = Host("bwrap", None)
    made._folder = tmp_path / f"agentrl-{made.label}"
    made._folder.mkdir()
    compiled = b"".join((1).to_bytes(8, "big") + b"c" for _ in rootfs._PROGRAMS)
    done = subprocess.CompletedProcess([], 0, stdout=compiled, stderr=b"")
    monkeypatch.setattr(RootFS, "probe", lambda self, sources: done)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return made


def test_a_host_is_probed_once(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda program: None)
    host.open()
    host._folder = None
    with pytest.raises(SandboxUnavailable, match="needs bubblewrap"):
        host.open()


def test_tools_that_do_not_fit_on_the_disk_say_where_to_make_room(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "write_bytes", refuse)
    with pytest.raises(SandboxUnavailable, match=r"No space left[\s\S]*set TMPDIR to another folder") as full:
        host.rootfs(None)
    assert full.value.place == str(tmp_path)
    monkeypatch.undo()
    assert host._known == {}, "it is probed again"


def test_the_files_of_an_image_that_cannot_be_copied_are_named(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host._layers = True
    monkeypatch.setattr(rootfs, "held_in", lambda root, spec: ["/work"])
    monkeypatch.setattr(rootfs, "owned_copy", refuse)
    with pytest.raises(SandboxUnavailable, match=r"a copy of /image/work: .*No space left[\s\S]*TMPDIR"):
        host.own_copies("/image", SandboxSpec())
    monkeypatch.setattr(rootfs, "owned_copy", lambda source, target, owner: None)
    assert host.own_copies("/image", SandboxSpec()).sources == {"/work": host.folder / "held0"}


def test_folders_of_a_system_that_are_no_links_are_shown_as_they_are(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Debian has had links there since 2019; other systems have folders."""
    monkeypatch.setattr(os.path, "islink", lambda path: False)
    monkeypatch.setattr(os.path, "isdir", lambda path: path in ("/bin", "/lib"))
    _, mounts = host._host_system()
    shown = [mounts[at : at + 3] for at in range(0, len(mounts), 3)]
    assert ["--ro-bind", "/bin", "/bin"] in shown
    assert ["--ro-bind", "/lib", "/lib"] in shown
    assert "/lib64" not in mounts


def test_a_python_outside_of_usr_is_shown_with_its_library(tmp_path: Path) -> None:
    home = tmp_path / "python-3.14"
    (home / "bin").mkdir(parents=True)
    (home / "bin/python3.14").touch()
    (tmp_path / "python3").symlink_to(home / "bin/python3.14")
    python, mounts = Host("bwrap", str(tmp_path / "python3"))._host_system()
    assert python == str(home / "bin/python3.14")
    at = mounts.index(str(home))
    assert mounts[at - 1 : at + 2] == ["--ro-bind", str(home), str(home)]


@contextmanager
def waiting(word: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process with a word in its command line, which waits."""
    with subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()", word]) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.slow
def test_a_process_that_was_to_start_from_the_folder_of_a_dead_owner_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill, killed = os.kill, list[int]()

    def noted(pid: int, number: int) -> None:
        killed.append(pid)
        kill(pid, number)

    monkeypatch.setattr(os, "kill", noted)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    pid, birth, rest = new_label().split("-", 2)
    left = tmp_path / f"agentrl-{pid}-{int(birth) + 1}-{rest}"
    kept = tmp_path / f"agentrl-{new_label()}"
    for folder in (left, kept):
        folder.mkdir()
        (folder / "lock").touch()
    with waiting(f"{left}/tools0") as orphan, waiting(f"{kept}/tools0") as other:
        told = [f"process {orphan.pid}", f"folder {left}"]
        assert reap_folders(dry=True) == told
        assert killed == []
        assert reap_folders() == told
        assert killed == [orphan.pid]
        assert orphan.wait() == -signal.SIGKILL
        assert other.poll() is None
    assert list(tmp_path.iterdir()) == [kept]


# Copies of folders


def test_overlays_are_for_root_and_for_folders_whose_path_is_no_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", lambda command, **settings: subprocess.CompletedProcess(command, 0))
    monkeypatch.setattr(shutil, "which", lambda program: f"/usr/bin/{program}")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert own_copy.can_layer(Path("/tmp/own"))
    assert not own_copy.can_layer(Path("/tmp/a:b/own"))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert not own_copy.can_layer(Path("/tmp/own"))


def test_a_copy_that_fails_says_why_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **settings: Any) -> subprocess.CompletedProcess[str]:
        Path(command[-1]).mkdir()
        return subprocess.CompletedProcess(command, 1, "", "cp: error writing 'x': No space left on device\n")

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(OSError, match="No space left on device"):
        own_copy.owned_copy("/image/work", tmp_path / "held0", os.geteuid())
    assert list(tmp_path.iterdir()) == []


# The backend


@pytest.fixture
def backend(host: Host) -> NamespaceBackend:
    made = NamespaceBackend(cgroups=False)
    made._host = host
    return made


def test_what_this_machine_does_not_enforce_is_noted(
    backend: NamespaceBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backends, "filter_program", lambda: None)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    known = backend.capabilities
    assert (known.syscalls, known.cpu, known.memory) == ("none", "none", "rlimit")
    assert known.note.split("; ") == [
        "no writable cgroup: memory is limited per process, not per sandbox",
        "no libseccomp: system calls are not filtered",
        "sandboxes run as root's user id, without capabilities: another user was not possible",
    ]


@pytest.mark.parametrize(
    ("removed", "why"),
    [
        (False, "the host could not start a sandbox: .*No space left on device"),
        (True, r"the backend's own files are gone: .*[\s\S]*a cleaner of temporary files: set TMPDIR"),
    ],
)
async def test_a_host_that_cannot_start_a_sandbox_says_what_it_lacks(
    removed: bool, why: str, backend: NamespaceBackend, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def start(self: ProcessTree, *arguments: object) -> None:
        if removed:
            shutil.rmtree(host.folder)
        raise FULL

    monkeypatch.setattr(ProcessTree, "start", start)
    with pytest.raises(SandboxStartFailed, match=why):
        await backend.launch(SandboxSpec(), "episode", None)
    assert not backend._alive


async def test_files_of_the_image_that_a_sandbox_cannot_copy_are_named(
    backend: NamespaceBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def start(self: ProcessTree, *arguments: object) -> None: ...

    async def exec(self: NamespaceSandbox, command: list[str], **settings: Any) -> ExecResult:
        assert command[-2:] == [f"{own_copy.HELD}/0", "/work"]
        return ExecResult(1, "nonzero", b"No space left on device\n")

    monkeypatch.setattr(ProcessTree, "start", start)
    monkeypatch.setattr(NamespaceSandbox, "exec", exec)
    monkeypatch.setattr(Host, "own_copies", lambda self, root, spec: OwnCopies({"/work": Path("/image/work")}, None))
    with pytest.raises(SandboxStartFailed, match="the image at /work cannot be copied: nonzero: No space left"):
        await backend.launch(SandboxSpec(), "episode", None)
    assert not backend._alive


# The end of a sandbox's processes


class Bubblewrap:
    """A bubblewrap that ends only when it is killed."""

    pid = 50

    def __init__(self) -> None:
        self.killed = False

    def kill(self) -> None:
        self.killed = True


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The processes that are killed; 52 has just ended. Bubblewrap has the children 51 and 52."""
    found: list[int] = []

    def kill(pid: int, number: int) -> None:
        assert number == signal.SIGKILL
        found.append(pid)
        if pid == 52:
            raise ProcessLookupError

    def children(path: str) -> io.StringIO:
        assert path == "/proc/50/task/50/children"
        return io.StringIO("52 51 ")

    monkeypatch.setattr(os, "kill", kill)
    monkeypatch.setattr(tree, "open", children, raising=False)
    return found


def starting(bubblewrap: Bubblewrap, init_pid: int, monkeypatch: pytest.MonkeyPatch) -> ProcessTree:
    async def exited(process: Bubblewrap, timeout_s: float) -> bool:
        return process.killed

    monkeypatch.setattr(tree, "_exited", exited)
    made = ProcessTree()
    process: Any = bubblewrap
    made._process, made.init_pid, made._socket = process, init_pid, 99
    return made


async def test_a_bubblewrap_that_does_not_end_is_killed_with_its_children(
    killed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    sockets: list[int] = []
    monkeypatch.setattr(tree, "_kill_holders", sockets.append)
    bubblewrap = Bubblewrap()
    await starting(bubblewrap, 0, monkeypatch).remove()
    assert killed == [52, 51]
    assert bubblewrap.killed
    assert sockets == [99], "a child that bubblewrap left behind holds its end of the wire"


async def test_a_toolbox_that_is_known_is_killed_by_its_id(killed: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    bubblewrap = Bubblewrap()
    await starting(bubblewrap, 60, monkeypatch).remove()
    assert killed == [60]
    assert bubblewrap.killed


def test_a_process_that_is_gone_has_no_children(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "open", refuse, raising=False)
    assert tree._children(50) == []


async def test_a_group_is_removed_once_its_dying_processes_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[str] = []

    class Dying(Cgroup):
        def remove(self) -> bool:
            turns.append("remove")
            return turns.count("kill") == 2

        def kill(self) -> None:
            turns.append("kill")

    async def sleep(seconds: float) -> None:
        turns.append(f"{seconds:g} s")

    monkeypatch.setattr(tree, "asyncio", SimpleNamespace(sleep=sleep, to_thread=asyncio.to_thread))
    made = ProcessTree()
    made.group = Dying((), "", 2)
    await made.remove()
    assert turns == ["remove", "kill", "0.0005 s", "remove", "kill", "0.001 s", "remove"]
