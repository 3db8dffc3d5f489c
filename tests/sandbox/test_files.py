"""Files in and out."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from agentrl.sandbox.client import _unpack
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


@pytest.fixture(params=["this Python", "before 3.11.4"])
def any_python(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Debian 12's Python has no filters for archives."""
    if request.param == "before 3.11.4":
        monkeypatch.delattr(tarfile, "data_filter", raising=False)


@pytest.mark.usefixtures("any_python")
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


@pytest.mark.usefixtures("any_python")
@pytest.mark.parametrize(
    "trap", ["ln -s /etc/passwd trap/out", "ln -s ../../../../../../../etc trap/out", "mkfifo trap/out"]
)
async def test_what_comes_back_stays_in_its_folder(sandbox: NamespaceSandbox, tmp_path: Path, trap: str) -> None:
    await sandbox.exec(f"mkdir trap; {trap}")
    with pytest.raises(tarfile.TarError, match=r"leads out|a device"):
        await sandbox.get("trap", tmp_path / "target")
    assert not (tmp_path / "target" / "out").exists()


async def test_a_hard_link_to_a_link_is_refused(sandbox: NamespaceSandbox, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "secret").chmod(0o400)
    await sandbox.exec("mkdir -p trap/a/b/c; cd trap; ln -s ../../secret a/b/c/s; touch a/secret; ln -P a/b/c/s s2")
    with pytest.raises(tarfile.TarError, match="hard link to no file|leads out"):
        await sandbox.get("trap", tmp_path / "target")
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o400


@pytest.mark.usefixtures("any_python")
def test_a_path_too_long_to_resolve_leads_nowhere(tmp_path: Path) -> None:
    """Links nested so deeply that realpath gives up on them (CVE-2025-4517)."""
    packed, inner, deep = io.BytesIO(), "d" * 247, ""
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for letter in "abcdefghijklmnop":
            folder = tarfile.TarInfo(deep + inner)
            folder.type = tarfile.DIRTYPE
            tar.addfile(folder)
            link = tarfile.TarInfo(deep + letter)
            link.type, link.linkname = tarfile.SYMTYPE, inner
            tar.addfile(link)
            deep += f"{inner}/"
        short = "/".join("abcdefghijklmnop") + "/" + "l" * 254
        up = tarfile.TarInfo(short)
        up.type, up.linkname = tarfile.SYMTYPE, "../" * 16
        tar.addfile(up)
        escape = tarfile.TarInfo("escape")
        escape.type, escape.linkname = tarfile.SYMTYPE, f"{short}/../../victim"
        tar.addfile(escape)
        pwned = tarfile.TarInfo("escape/pwned")
        pwned.size = 1
        tar.addfile(pwned, io.BytesIO(b"x"))
    (tmp_path / "victim").mkdir()
    with pytest.raises(tarfile.TarError):
        _unpack(packed.getvalue(), tmp_path / "in" / "target")
    assert not any((tmp_path / "victim").iterdir())


@pytest.mark.usefixtures("any_python")
@pytest.mark.parametrize("name", ["../out", "/tmp/agentrl-out", "link/out"])
def test_an_archive_of_traps(tmp_path: Path, name: str) -> None:
    packed, target = io.BytesIO(), tmp_path / "target"
    with tarfile.open(fileobj=packed, mode="w") as tar:
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "sub"
        inside = tarfile.TarInfo("inside")
        inside.size, inside.mode = 1, 0o4777
        tar.addfile(link)
        tar.addfile(inside, io.BytesIO(b"x"))
        trap = tarfile.TarInfo(name)
        trap.type, trap.linkname = tarfile.LNKTYPE, "../secret"
        tar.addfile(trap)
    (tmp_path / "secret").write_text("secret")
    with pytest.raises(tarfile.TarError):
        _unpack(packed.getvalue(), target)
    assert (target / "inside").stat().st_mode & 0o7777 == 0o755
    assert sorted(path.name for path in target.iterdir()) == ["inside", "link"]


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
