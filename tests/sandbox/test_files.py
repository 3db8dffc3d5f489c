"""Files in and out."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.sandbox.contract import FileInfo, SandboxSpec, SandboxStartFailed
from agentrl.sandbox.namespace import NamespaceBackend, NamespaceSandbox

EVERY_BYTE = bytes(range(256)) * 8192


async def test_round_trip(sandbox: NamespaceSandbox) -> None:
    await sandbox.write("deep/er/ü x.bin", EVERY_BYTE, mode=0o600)
    assert await sandbox.read("deep/er/ü x.bin") == EVERY_BYTE
    assert await sandbox.read("/work/deep/er/ü x.bin") == EVERY_BYTE
    await sandbox.write("deep/er/ü x.bin", "short")
    assert await sandbox.read("deep/er/ü x.bin") == b"short"
    await sandbox.exec("mkdir d; ln -s nowhere d/l; mkfifo d/p; echo a > d/f; mkdir d/s")
    entries = {entry.name: entry.kind for entry in await sandbox.list("d")}
    assert entries == {"f": "file", "l": "link", "p": "other", "s": "folder"}
    assert await sandbox.list("d/s") == []
    assert FileInfo("f", "file", 2) in await sandbox.list("/work/d")


async def test_errors_are_those_of_open(sandbox: NamespaceSandbox) -> None:
    await sandbox.exec("mkfifo pipe; mkdir folder; head -c 2000 /dev/zero > big")
    with pytest.raises(FileNotFoundError, match="missing"):
        await sandbox.read("missing")
    with pytest.raises(IsADirectoryError):
        await sandbox.read("folder")
    with pytest.raises(OSError, match="regular"):
        await sandbox.read("pipe")  # must not wait for a writer
    with pytest.raises(OSError, match="limit of 1000"):
        await sandbox.read("big", limit=1000)
    with pytest.raises(IsADirectoryError):
        await sandbox.write("folder", b"")
    with pytest.raises(OSError, match=r"Not a directory|File exists"):
        await sandbox.write("big/x", b"")
    with pytest.raises(OSError, match="Read-only"):
        await sandbox.write("/usr/x", b"")
    with pytest.raises(NotADirectoryError):
        await sandbox.list("big")


async def test_put_and_get(sandbox: NamespaceSandbox, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "sub").mkdir(parents=True)
    (source / "sub" / "a.bin").write_bytes(EVERY_BYTE)
    (source / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (source / "run.sh").chmod(0o755)
    await sandbox.put(source, "copy")
    await sandbox.put(source / "run.sh", "single")
    assert (await sandbox.exec("copy/run.sh; single/run.sh")).text == "ran\nran\n"
    await sandbox.get("copy", tmp_path / "back")
    assert (tmp_path / "back" / "sub" / "a.bin").read_bytes() == EVERY_BYTE
    await sandbox.get("copy/run.sh", tmp_path / "one")
    assert [path.name for path in (tmp_path / "one").iterdir()] == ["run.sh"]
    with pytest.raises(OSError, match="missing"):
        await sandbox.get("missing", tmp_path / "none")


async def test_what_comes_back_stays_in_its_folder(sandbox: NamespaceSandbox, tmp_path: Path) -> None:
    await sandbox.exec("mkdir trap; ln -s /etc/passwd trap/out")
    with pytest.raises(Exception, match=r"outside|absolute"):
        await sandbox.get("trap", tmp_path / "target")


async def test_files_and_setup_of_the_spec(backend: NamespaceBackend) -> None:
    spec = SandboxSpec(
        files={"in/a": "text", "/tmp/b": b"\0\1"}, setup=("cp in/a made", "test -f made"), env={"X": "1"}
    )
    sandbox = await backend.create(spec)
    assert await sandbox.read("made") == b"text"
    assert await sandbox.read("/tmp/b") == b"\0\1"
    assert (await sandbox.exec("echo $X")).text == "1\n"
    with pytest.raises(SandboxStartFailed, match=r"exit 3.*code 3.*why"):
        await backend.create(SandboxSpec(setup=("echo why; exit 3",)))
    with pytest.raises(SandboxStartFailed, match="/usr/a"):
        await backend.create(SandboxSpec(files={"/usr/a": ""}))
