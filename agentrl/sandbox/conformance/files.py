"""Checks of files in and out: none of it reaches the host's files."""

from __future__ import annotations

import asyncio
import io
import os
import tarfile
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

from agentrl.sandbox.conformance.arena import Arena, Broken, expect
from agentrl.sandbox.conformance.check import check
from agentrl.types.errors import SandboxError
from agentrl.types.sandbox import Sandbox

_SECRET = b"a file of the host"


def host_secret(folder: Path) -> Path:
    """Creates a file of the host that any user of the host could read and write."""
    secret = folder / "secret"
    secret.write_bytes(_SECRET)
    secret.chmod(0o666)
    return secret


async def _reads_nothing(sandbox: Sandbox, path: str) -> None:
    try:
        content = await sandbox.read(path)
    except OSError:
        return
    if _SECRET in content:
        raise Broken(f"reading {path} gave a file of the host")


async def _writes_nothing(sandbox: Sandbox, path: str, secret: Path) -> None:
    with suppress(OSError):
        await sandbox.write(path, b"overwritten")
    expect(secret.read_bytes() == _SECRET, f"writing {path} changed a file of the host")


@check()
async def file_errors(arena: Arena) -> None:
    """Unreadable and unwritable paths raise the errors of `open`, and never hang."""
    sandbox = await arena.open()
    await sandbox.exec("mkfifo pipe; mkdir folder; head -c 2000 /dev/zero > big")
    for path, kind in (
        ("missing", FileNotFoundError),
        ("folder", IsADirectoryError),
        ("pipe", OSError),
        ("/dev/zero", OSError),
        ("big/x", NotADirectoryError),
    ):
        try:
            await sandbox.read(path)
        except SandboxError:
            raise
        except kind:
            continue
        except OSError as error:
            raise Broken(f"reading {path} raised {error!r}") from None
        raise Broken(f"reading {path} raised nothing")
    try:
        await sandbox.read("big", limit=1000)
    except OSError:
        return
    raise Broken("a file larger than the limit was read")


@check()
async def further_writable_folders(arena: Arena) -> None:
    """Folders of `writable` are empty, writable and executable; their siblings are not writable."""
    sandbox = await arena.open(writable=["/app", "/opt/data"], workdir="/app/src")
    told = await sandbox.exec(
        "pwd; ls -A /app /opt/data; echo 'echo ran' > /app/x; sh /app/x; echo > /opt/data/y; ls /opt/data"
    )
    expect(told.text == "/app/src\n/app:\nsrc\n\n/opt/data:\nran\ny\n", f"it told {told.text!r}")
    beside = await sandbox.exec("echo > /opt/beside || echo > /beside")
    expect(not beside.ok, "a folder beside them can be written")


@check()
async def unreadable_files(arena: Arena) -> None:
    """Files and folders without permission raise PermissionError, and `put` and `get` an OSError."""
    sandbox = await arena.open()
    await sandbox.exec("echo x > file; mkdir folder; echo x > folder/file; chmod 000 file folder")
    for what, call in (
        ("reading a file", sandbox.read("file")),
        ("writing a file", sandbox.write("file", b"y")),
        ("listing a folder", sandbox.list("folder")),
        ("reading in a folder", sandbox.read("folder/file")),
        ("getting a folder", sandbox.get("folder", arena.host_folder() / "got")),
    ):
        try:
            await call
        except OSError:
            continue
        raise Broken(f"{what} without permission raised nothing")


@check()
async def odd_names(arena: Arena) -> None:
    """Names with blanks, newlines, leading dashes and non-ASCII characters work like others."""
    sandbox = await arena.open()
    names = ["a b", "-rf", "new\nline", "ü☃", "$(touch no)", "'\"", "x" * 255]
    for name in names:
        await sandbox.write(f"odd/{name}", name)
        expect((await sandbox.read(f"odd/{name}")).decode() == name, f"{name!r} came back different")
    expect({entry.name for entry in await sandbox.list("odd")} == set(names), "the list of names differs")


@check()
async def put_and_get(arena: Arena) -> None:
    """Folders go in and come out with bytes, modes and links."""
    sandbox = await arena.open()
    source = arena.host_folder() / "source"
    (source / "sub").mkdir(parents=True)
    (source / "sub" / "data").write_bytes(bytes(range(256)) * 100)
    (source / "run").write_text("#!/bin/sh\necho ran\n")
    (source / "run").chmod(0o755)
    (source / "link").symlink_to("run")
    await sandbox.put(source, "copy")
    expect((await sandbox.exec("copy/run; copy/link")).text == "ran\nran\n", "a program that was put does not run")
    target = arena.host_folder() / "target"
    await sandbox.get("copy", target)
    expect((target / "sub" / "data").read_bytes() == bytes(range(256)) * 100, "the bytes differ")
    expect(os.access(target / "run", os.X_OK) and os.readlink(target / "link") == "run", "modes or links differ")


@check()
async def host_files_out_of_reach(arena: Arena) -> None:
    """Programs, read, write and list cannot reach files of the host."""
    sandbox = await arena.open()
    secret = host_secret(arena.host_folder())
    result = await sandbox.exec(["cat", str(secret), f"/proc/1/root{secret}", f"/proc/1/cwd/../{secret}"])
    expect(_SECRET not in result.stdout, "a program read a file of the host")
    await sandbox.exec(f"echo overwritten > {secret}")
    expect(secret.read_bytes() == _SECRET, "a program changed a file of the host")
    await _reads_nothing(sandbox, str(secret))
    await _writes_nothing(sandbox, str(secret), secret)
    shadow = Path("/etc/shadow")
    if os.access(shadow, os.R_OK):
        told = await sandbox.exec(["cat", "/etc/shadow"])
        expect(told.stdout != shadow.read_bytes(), "/etc/shadow of the host is readable")


@check()
async def path_traversal(arena: Arena) -> None:
    """Paths full of `..` end at the sandbox's root, not at the host's."""
    sandbox = await arena.open()
    secret = host_secret(arena.host_folder())
    for path in (f"../../../../../../../..{secret}", f"/proc/self/root/..{secret}", f"/tmp/../..{secret}"):
        await _reads_nothing(sandbox, path)
        await _writes_nothing(sandbox, path, secret)


@check()
async def symlink_escape(arena: Arena) -> None:
    """Links to files of the host lead nowhere: on read, write, list, put."""
    sandbox = await arena.open()
    folder = arena.host_folder()
    secret = host_secret(folder)
    await sandbox.exec(f"ln -s {secret} file; ln -s {folder} folder; ln -s / root")
    for path in ("file", "folder/secret", f"root{secret}"):
        await _reads_nothing(sandbox, path)
        await _writes_nothing(sandbox, path, secret)
    await sandbox.exec(f"rm -rf {folder} folder; ln -s {folder} folder")
    source = arena.host_folder() / "made-by-put"
    source.write_bytes(b"x")
    with suppress(OSError):
        await sandbox.put(source, "folder")
    expect(sorted(os.listdir(folder)) == ["secret"], f"put through a link wrote to the host: {os.listdir(folder)}")


@check()
async def get_stays_in_its_folder(arena: Arena) -> None:
    """Results of `get` cannot lead or lie outside the target folder."""
    sandbox = await arena.open()
    outside = arena.host_folder()
    secret = host_secret(outside)
    for trap in (
        f"mkdir trap; ln -s {secret} trap/link",
        f"mkdir trap; ln -s {outside} trap/folder",
        "mkdir trap; ln -s ../../../../../../etc/passwd trap/link",
        "mkdir -p trap/a/b; touch trap/secret; ln -s ../../secret trap/a/b/s; ln -P trap/a/b/s trap/link",
    ):
        await sandbox.exec(f"rm -rf trap; {trap}")
        target = arena.host_folder() / "target"
        with suppress(OSError):
            await sandbox.get("trap", target)
        leads = [path for path in target.rglob("*") if not path.resolve().is_relative_to(target.resolve())]
        expect(not leads, f"{leads} leads out of the folder")
    expect(secret.read_bytes() == _SECRET, "a file of the host was changed")


@check()
async def packed_traps_in_put(arena: Arena) -> None:
    """An archive with `..` names, unpacked inside, changes no file outside."""
    sandbox = await arena.open()
    secret = host_secret(arena.host_folder())
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        entry = tarfile.TarInfo(f"../../../../../..{secret}")
        entry.size = 1
        tar.addfile(entry, io.BytesIO(b"x"))
    await sandbox.write("trap.tar", packed.getvalue())
    await sandbox.exec("tar -P -xf trap.tar")
    expect(secret.read_bytes() == _SECRET, "unpacking inside changed a file of the host")


_TRAPS = """
import os, socket
os.makedirs("folder")
os.mkfifo("pipe")
os.symlink("loop", "loop")
os.symlink("nowhere", "dangling")
os.symlink("/dev/zero", "endless")
os.symlink("/etc/passwd", "out")
os.symlink("/proc/self/fd/5", "descriptor")
socket.socket(socket.AF_UNIX).bind("socket")
open("forbidden", "w").close()
os.chmod("forbidden", 0)
with open("hole", "w") as file:
    try:
        os.truncate("hole", 1 << 40)
    except OSError:  # this file system has no files as large
        os.truncate("hole", 1 << 33)
os.mkdir("deep")
os.chdir("deep")
for _ in range(10_000):
    os.mkdir("d")
    os.chdir("d")
"""
_TRAP_NAMES = """
folder pipe loop dangling endless out descriptor socket forbidden hole deep missing file/x . / /proc/self/fd/4
/proc/1/mem /proc/kmsg /dev/full /proc/self/environ
""".split()  # noqa: SIM905
_TRAP_NAMES += ["n" * 300, "n/" * 3000]
_SLOWEST_S = 5.0


class _Heartbeat:
    """Measures the longest pause of the event loop while a call runs."""

    slowest_s = 0.0

    async def beside(self, call: Coroutine[Any, Any, object]) -> None:
        """Runs a call to its end; an OSError is a valid end."""
        loop = asyncio.get_running_loop()
        task = asyncio.ensure_future(call)
        while not task.done():
            last = loop.time()
            await asyncio.wait([task], timeout=0.01)
            self.slowest_s = max(self.slowest_s, loop.time() - last)
        with suppress(OSError):
            task.result()


@check()
async def traps_where_a_file_was_expected(arena: Arena) -> None:
    """Folders, links, pipes, 1 TB holes, 10,000-deep trees: each call ends soon, with a result or OSError."""
    sandbox = await arena.open()
    expect((await sandbox.exec(["python3", "-c", _TRAPS])).ok, "the traps cannot be laid")
    source, target = arena.host_folder(), arena.host_folder()
    (source / "from-the-host").write_bytes(b"x")
    heart = _Heartbeat()
    calls: dict[str, Callable[[str], Coroutine[Any, Any, object]]] = {
        "reading": sandbox.read,
        "listing": sandbox.list,
        "getting": lambda name: sandbox.get(name, target / str(_TRAP_NAMES.index(name))),
        "putting into": lambda name: sandbox.put(source, name),
        "writing": lambda name: sandbox.write(name, b"x"),
    }
    for what, call in calls.items():
        for name in _TRAP_NAMES:
            try:
                async with asyncio.timeout(30):
                    await heart.beside(call(name))
            except TimeoutError:
                raise Broken(f"{what} {name[:20]} did not end") from None
            except SandboxError as error:
                raise Broken(f"{what} {name[:20]}: {error}") from None
    size = sum(path.lstat().st_size for path in target.rglob("*") if path.is_file() and not path.is_symlink())
    expect(size <= 256 << 20, f"{size} bytes came out")
    expect(heart.slowest_s < _SLOWEST_S, f"the event loop stood still for {heart.slowest_s:.1f} s")
    expect((await sandbox.exec("echo on")).stdout == b"on\n", "the sandbox does not answer any more")


_FORGER = """
import os, time
own = {os.getpid(), os.getppid()}
while True:
    for name in os.listdir("/proc"):
        if name.isdigit() and name != "1" and int(name) not in own:
            try:
                with open(f"/proc/{name}/fd/1", "wb", 0) as file:
                    file.write(b"BZh91AY&SY" + bytes(200) + b"../../forged")
            except OSError:
                pass
"""


@check()
async def forged_copies_are_refused(arena: Arena) -> None:
    """A program that writes into the stream of `get` cannot forge files: it is an OSError, or the real files."""
    sandbox = await arena.open()
    await sandbox.exec("mkdir folder; seq 1000 > folder/file; truncate -s 20M folder/hole")
    await sandbox.spawn(["python3", "-c", _FORGER])
    for number in range(5):
        target = arena.host_folder() / "in" / str(number)
        with suppress(OSError):
            await sandbox.get("folder", target)
        found = {path.name for path in target.rglob("*")}
        expect(found <= {"file", "hole"}, f"it holds {sorted(found)}")


@check()
async def writing_reaches_no_pipe_of_the_toolbox(arena: Arena) -> None:
    """`write` creates regular files only: paths to a descriptor, a pipe or a device are refused."""
    sandbox = await arena.open()
    session = await sandbox.session()
    await session.run("true")
    await sandbox.exec("mkfifo pipe; ln -s /dev/null device")
    for path in ["pipe", "device", *(f"/proc/self/fd/{number}" for number in range(3, 40))]:
        try:
            await sandbox.write(path, b"1 0\0")
        except OSError:
            continue
        raise Broken(f"{path} was written")
    expect((await session.run("echo on")).stdout == b"on\n", "the session is confused")
