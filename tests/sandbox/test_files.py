"""Files in and out."""

from __future__ import annotations

import asyncio
import os
import struct
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agentrl.sandbox.namespace.backend import NamespaceBackend, NamespaceSandbox
from agentrl.sandbox.toolbox import carry
from agentrl.sandbox.toolbox.process import ToolboxProcess
from agentrl.types.paths import data_path
from agentrl.types.sandbox import FileInfo, SandboxSpec, SandboxStartFailed, SandboxUnavailable

pytestmark = pytest.mark.slow

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


async def test_large_files_come_in_pieces(backend: NamespaceBackend) -> None:
    """The toolbox has room for a piece of a file, not for the file: who leaves a hole loses no sandbox by it."""
    sandbox = await backend.create(SandboxSpec(memory_mb=48))
    await sandbox.exec("truncate -s 60M hole; printf end >> hole; truncate -s 1T large")
    content = await sandbox.read("hole")
    assert (len(content), content[-3:]) == ((60 << 20) + 3, b"end")
    for size in ((1 << 20) - 1, 1 << 20, (1 << 20) + 1, 1 << 21):
        await sandbox.exec(["truncate", "-s", str(size), "hole"])
        assert await sandbox.read("hole", limit=size) == bytes(size)
        with pytest.raises(OSError, match="limit"):
            await sandbox.read("hole", limit=size - 1)
    with pytest.raises(OSError, match="limit"):
        await sandbox.read("large")
    assert len((await sandbox.exec("ls -l /proc/1/fd 2>/dev/null; exec ls /proc/self/fd")).text.split()) < 8


async def test_only_regular_files_are_written(sandbox: NamespaceSandbox) -> None:
    await sandbox.exec("mkfifo pipe; (sleep 60 < pipe) & ln -s /dev/null null")
    for path in ("pipe", "null", *(f"/proc/self/fd/{number}" for number in range(12))):
        with pytest.raises(OSError, match=r"regular|No such|Permission|not permitted"):
            await sandbox.write(path, b"x")
    for path in ("a/" * 2500, "a/" * 500_000):
        with pytest.raises(OSError, match="too long"):
            await sandbox.write(path, b"x")
    assert (await sandbox.health()).alive


async def test_a_folder_of_very_many_names(sandbox: NamespaceSandbox) -> None:
    await sandbox.exec("mkdir many; cd many; seq 300 | xargs touch")
    assert len(await sandbox.list("many")) == 300
    with pytest.raises(OSError, match="more than 299 entries"):
        await sandbox.list("many", limit=299)


async def test_a_folder_that_changes_is_listed(sandbox: NamespaceSandbox) -> None:
    churn = "mkdir d; cd d; touch stays; echo on; while :; do for n in 1 2 3 4 5 6 7 8 9; do > $n; done; rm [1-9]; done"
    program = await sandbox.spawn(churn)
    await program.read()
    for _ in range(200):
        assert "stays" in {entry.name for entry in await sandbox.list("d")}


async def test_put_and_get(sandbox: NamespaceSandbox, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "sub").mkdir(parents=True)
    (source / "sub" / "a.bin").write_bytes(EVERY_BYTE)
    (source / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (source / "run.sh").chmod(0o755)
    (source / "out").symlink_to("/usr/bin")
    os.utime(source / "run.sh", (1_000_000_000, 1_000_000_000))
    await sandbox.put(source, "copy")
    await sandbox.put(source / "run.sh", "single")
    assert (
        await sandbox.exec("copy/run.sh; single/run.sh; readlink copy/out; rm copy/out; stat -c %Y copy/run.sh")
    ).text == ("ran\nran\n/usr/bin\n1000000000\n")
    await sandbox.get("copy", tmp_path / "back")
    assert (tmp_path / "back" / "sub" / "a.bin").read_bytes() == EVERY_BYTE
    assert (tmp_path / "back" / "run.sh").stat().st_mtime == 1_000_000_000
    await sandbox.get("copy/run.sh", tmp_path / "one")
    assert [path.name for path in (tmp_path / "one").iterdir()] == ["run.sh"]
    await sandbox.exec("rm -r copy/sub; ln -s sub copy/run.sh -f; echo file > copy/sub")
    await sandbox.put(source, "copy")  # over what is there
    assert (await sandbox.exec("copy/run.sh; cat copy/sub/a.bin | wc -c")).text == f"ran\n{len(EVERY_BYTE)}\n"
    with pytest.raises(FileNotFoundError, match="missing"):
        await sandbox.get("missing", tmp_path / "none")
    with pytest.raises(FileNotFoundError, match="missing"):
        await sandbox.put(tmp_path / "missing", "none")


TRAPS = [
    ("ln -s /etc/passwd trap/out", "leads out"),
    ("ln -s ../../../../../../../etc trap/out", "leads out"),
    ("mkdir -p trap/a/b; ln -s ../../secret trap/a/b/s; ln -P trap/a/b/s trap/out", "leads out"),
    ("ln -s a/../../secret trap/out", "leads out"),
    ("mkfifo trap/out", "a pipe"),
    ("truncate -s 1T trap/out", "more than 256 MiB"),
    ("for n in 1 2 3; do truncate -s 100M trap/$n; done", "more than 256 MiB"),
    (
        'cd trap; python3 -c \'import os; [(os.mkdir("d"), os.chdir("d")) for _ in range(10000)]\'',
        "deeper than 128",
    ),
    (f"cd trap; for ((n = 0; n < 20; n++)); do mkdir {'d' * 200}; cd d*; done", "a path of more than"),
    ("chmod 0 trap", "Permission denied"),
]
"""Folders that cannot be copied to the host, and why."""


@pytest.mark.parametrize(("trap", "why"), TRAPS)
async def test_what_is_not_for_the_host(sandbox: NamespaceSandbox, tmp_path: Path, trap: str, why: str) -> None:
    assert (await sandbox.exec(f"mkdir trap; {trap}")).ok
    with pytest.raises(OSError, match=why):
        await sandbox.get("trap", tmp_path / "target")
    assert not (tmp_path / "target" / "out").is_symlink()
    assert (await sandbox.health()).alive


async def test_a_large_folder_takes_no_memory_of_the_driver(
    sandbox: NamespaceSandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await sandbox.exec("mkdir holes; truncate -s 60M holes/1 holes/2")
    pieces: list[int] = []
    read = ToolboxProcess.read

    async def counted(self: ToolboxProcess, *args: Any, **more: Any) -> bytes:
        pieces.append(len(data := await read(self, *args, **more)))
        return data

    monkeypatch.setattr(ToolboxProcess, "read", counted)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = _peak()
    await sandbox.get("holes", tmp_path / "got")
    assert (tmp_path / "got" / "2").stat().st_size == 60 << 20
    assert _peak() - before < 25 << 10
    assert max(pieces) <= 1 << 20, "the event loop goes on between the pieces"


def _peak() -> int:
    """Most memory of this process, KiB."""
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])


async def test_getting_can_be_cancelled(sandbox: NamespaceSandbox, tmp_path: Path) -> None:
    await sandbox.exec("truncate -s 60M hole")
    getting = asyncio.ensure_future(sandbox.get("hole", tmp_path))
    while not (tmp_path / "hole").exists():
        await asyncio.sleep(0)  # all that is carried goes through this loop, so that it cannot be over in between
    getting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await getting
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    assert not [pid for pid in children if b"carry.py" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    assert (await sandbox.health()).processes == 1
    await sandbox.get("hole", tmp_path / "again")


STOPS_PACKERS = """
import os
while True:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if b"carry" + b".pyc" in open(f"/proc/{pid}/cmdline", "rb").read():
                os.kill(int(pid), 19)
                open("stopped", "w").close()
        except OSError:
            pass
    open("ready", "w").close()
"""


async def test_a_packer_that_was_stopped(
    sandbox: NamespaceSandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = carry._here

    @asynccontextmanager
    async def once_it_is_stopped(*words: str) -> AsyncIterator[Any]:
        while not (await sandbox.exec("test -e stopped")).ok:
            pass
        async with here(*words) as unpacker:
            yield unpacker

    monkeypatch.setattr(carry, "DEADLINE_S", 1.0)
    monkeypatch.setattr(carry, "_here", once_it_is_stopped)
    await sandbox.exec("truncate -s 250M hole")
    await sandbox.spawn(f"python3 -c '{STOPS_PACKERS}'")
    while not (await sandbox.exec("test -e ready")).ok:
        pass
    with pytest.raises(OSError, match=r"not carried within 1 s"):
        await sandbox.get("hole", tmp_path)
    assert (await sandbox.exec("true")).ok


async def test_a_target_that_cannot_be_written_is_no_result(sandbox: NamespaceSandbox) -> None:
    await sandbox.exec("echo x > file")
    with pytest.raises(SandboxUnavailable, match=r"(?s)/proc/self/target.*cannot be written.*free some space"):
        await sandbox.get("file", Path("/proc/self/target"))


def record(kind: bytes, body: bytes = b"", mode: int = 0o4777, changed: int = -1) -> bytes:
    return struct.pack(">cHqI", kind, mode, changed, len(body)) + body


def file(name: bytes, content: bytes = b"x") -> bytes:
    return record(b"f", name) + record(b"c", content) + record(b"c")


def link(name: bytes, target: bytes) -> bytes:
    return record(b"l", name) + record(b"c", target)


def unpacker(target: Path) -> list[str]:
    program = data_path("tools", "toolbox", "carry.py")
    return [sys.executable, "-I", "-S", str(program), "unpack", str(target), "bounded"]


def unpack(stream: bytes, target: Path) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(unpacker(target), input=stream, capture_output=True, timeout=60, check=False)


END = record(b"z")
BOMB = b"BZh91AY&SY" + bytes(64)


FORGED = [
    *(file(name) + END for name in (b"", b".", b"..", b"../out", b"a/b", b"/out", b"a\0b")),
    *(record(b"d", name) + record(b"u") + END for name in (b"..", b"/", b"a/b")),
    *(link(b"l", target) + END for target in (b"", b"a\0b", b"/etc", b"..", b"a/../..", b"../out", b"a/../../out")),
    record(b"d", b"a") + link(b"l", b"../../out") + record(b"u") + END,
    link(b"../out", b"a") + END,
    record(b"l", b"l") + END,
    record(b"u") + file(b"out") + END,
    record(b"d", b"a") + END,
    record(b"c", b"x") + END,
    record(b"f", b"a") + file(b"b") + END,
    file(b"a"),
    file(b"a")[:-1],
    record(b"?", b"a") + END,
    struct.pack(">cHqI", b"f", 0, 0, 1 << 31) + END,
    (record(b"d", b"d") + record(b"u")) * 100_001 + END,
    record(b"d", b"d") * 129 + record(b"u") * 129 + END,
    BOMB,
    b"\x1f\x8b" + bytes(100),
    b"",
]
"""Streams that no packer writes."""


@pytest.mark.parametrize("stream", FORGED)
def test_forged_streams_are_refused(tmp_path: Path, stream: bytes) -> None:
    done = unpack(stream, tmp_path / "in" / "target")
    assert done.returncode == 3, done
    assert done.stderr.partition(b" ")[0].isdigit()
    assert b"Traceback" not in done.stderr
    assert not list(tmp_path.rglob("out"))


def test_a_forged_stream_of_too_many_bytes(tmp_path: Path) -> None:
    data = record(b"c", bytes(1 << 18))
    with subprocess.Popen(unpacker(tmp_path), stdin=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(record(b"f", b"a"))
        with pytest.raises(BrokenPipeError):
            for _ in range(2000):
                process.stdin.write(data)
        assert b"more than 256 MiB" in process.stderr.read()
    assert (tmp_path / "a").stat().st_size <= 256 << 20


def test_what_comes_twice_replaces_and_no_link_is_followed(tmp_path: Path) -> None:
    target, outside = tmp_path / "target", tmp_path / "outside"
    target.mkdir()
    outside.mkdir()
    (target / "old").symlink_to(outside)
    (target / "file").symlink_to(outside / "file")
    stream = link(b"l", b"f") + file(b"f") + file(b"l", b"y") + link(b"d", b".") + record(b"d", b"d") + file(b"in")
    stream += record(b"u") + record(b"d", b"old") + file(b"in") + record(b"u") + file(b"file") + END
    done = unpack(stream, target)
    assert done.returncode == 0, done
    assert not list(outside.iterdir())
    assert (target / "f").read_bytes() == b"x"
    assert (target / "l").read_bytes() == b"y"
    assert (target / "d" / "in").exists()
    assert (target / "old" / "in").exists()
    assert {path.lstat().st_mode & 0o7777 for path in target.rglob("*")} == {0o755}
    assert not [path for path in target.rglob("*") if path.is_symlink()]


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
