"""Snapshot program inside a sandbox: packs folders into a stream and restores them exactly.

Usage: `python3 -I -S archive.py pack FOLDER ...` writes to stdout; `unpack FOLDER ...` reads from stdin into the same
number of folders, which it empties first; `release` resumes the programs stopped by a packer that was killed. Needs
any Python 3.9+, and neither root nor tar.

Preserves content (holes as holes), modes, modification times in nanoseconds, hard and symbolic links, and pipes.
Drops sockets, because their processes do not exist after unpacking, and extended attributes.

The stream is a sequence of marshalled tuples: kind, number of the folder, path below it, and more. All other programs
of the sandbox are stopped while packing.
"""

from __future__ import annotations

import errno
import fcntl
import marshal
import os
import signal
import stat
import sys
import time
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import BinaryIO

CHUNK = 1 << 20
F_SETPIPE_SZ = 1031
HOLD_S = 1.0  # timeout for programs to stop: one blocked in the kernel cannot write either


def stream(file: BinaryIO) -> BinaryIO:
    """Returns the file; enlarges the buffer of a pipe to a chunk."""
    with suppress(OSError):  # not a pipe, or too many large pipes
        fcntl.fcntl(file, F_SETPIPE_SZ, CHUNK)
    return file


# Other programs


def running() -> list[int]:
    """Returns the pids of all running programs except process 1 and this one."""
    others = [name for name in os.listdir("/proc") if name.isdigit() and int(name) not in (1, os.getpid())]
    return [int(name) for name in others if runs(name)]


def runs(name: str) -> bool:
    """Returns True if any thread of a program runs: the main thread may end before the others."""
    with suppress(OSError):  # it has just ended
        for thread in os.listdir(f"/proc/{name}/task"):
            with suppress(OSError), open(f"/proc/{name}/task/{thread}/stat", "rb") as file:
                if file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X", b"T"):
                    return True
    return False


def hold() -> set[int]:
    """Stops all other programs; returns their pids."""
    held: set[int] = set()
    deadline = time.monotonic() + HOLD_S
    while time.monotonic() < deadline:
        found = running()
        if not found:
            break
        send(found, signal.SIGSTOP)
        held.update(found)
        time.sleep(0.0005)
    return held


def send(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


# Packing


class Packer:
    """Writes entries. Temporarily makes files readable whose mode denies it to their owner."""

    def __init__(self, out: BinaryIO) -> None:
        self.out = out
        self.seen: dict[tuple[int, int], str] = {}  # path of the first hard link, by device and inode
        self.opened: list[tuple[str, int]] = []  # paths whose modes are changed, and the modes

    def put(self, *entry: str | int | bytes) -> None:
        marshal.dump(entry, self.out)

    def folder(self, number: int, root: str) -> None:
        queue, device = [""], os.lstat(root).st_dev
        while queue:
            path = queue.pop()
            about = os.lstat(root + path)
            if stat.S_ISDIR(about.st_mode) and about.st_dev != device:
                continue  # mount point of another folder (files of an overlay have several devices)
            self.entry(number, path, root + path, about)
            if stat.S_ISDIR(about.st_mode):
                self.open(root + path, about.st_mode, 0o700)
                queue += [f"{path}/{name}" for name in os.listdir(root + path)]

    def entry(self, number: int, path: str, source: str, about: os.stat_result) -> None:
        mode, times = stat.S_IMODE(about.st_mode), about.st_mtime_ns
        if stat.S_ISDIR(about.st_mode):
            self.put("folder", number, path, mode, times)
            return
        if stat.S_ISSOCK(about.st_mode):
            return  # its process is not packed; no further link of it must name what is not there
        if about.st_nlink > 1:
            first = self.seen.setdefault((about.st_dev, about.st_ino), path)
            if first != path:
                self.put("hard", number, path, first)
                return
        if stat.S_ISREG(about.st_mode):
            self.put("file", number, path, mode, times, about.st_size)
            self.open(source, about.st_mode, 0o400)
            self.content(source)
        elif stat.S_ISLNK(about.st_mode):
            self.put("link", number, path, os.readlink(source), times)
        else:
            self.put("node", number, path, about.st_mode, times, about.st_rdev)

    def open(self, path: str, mode: int, needed: int) -> None:
        if mode & needed != needed:
            self.opened.append((path, stat.S_IMODE(mode)))
            os.chmod(path, stat.S_IMODE(mode) | needed)

    def close(self) -> None:
        """Restores the modes."""
        for path, mode in reversed(self.opened):  # content before its folder
            os.chmod(path, mode)

    def content(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        try:
            at, end = 0, 0
            while True:
                if at == end:
                    try:
                        at = os.lseek(fd, end, os.SEEK_DATA)
                    except OSError as error:
                        if error.errno == errno.ENXIO:  # only a hole from here on
                            return
                        raise
                    end = os.lseek(fd, at, os.SEEK_HOLE)
                data = os.pread(fd, min(CHUNK, end - at), at)
                if not data:
                    return
                self.put("data", at, data)
                at += len(data)
        finally:
            os.close(fd)


def pack(roots: list[str]) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    packer, held = Packer(stream(sys.stdout.buffer)), hold()
    try:
        for number, root in enumerate(roots):
            packer.folder(number, root)
        packer.put("end")
        packer.out.flush()
    finally:
        packer.close()
        send(held, signal.SIGCONT)


def release(_: list[str]) -> None:
    """Resumes all programs, in case a packer died before it could."""
    with suppress(ProcessLookupError):
        os.kill(-1, signal.SIGCONT)


# Unpacking


class Unpacker:
    """Makes what a stream describes, in empty folders."""

    def __init__(self, source: BinaryIO, roots: list[str]) -> None:
        self.source, self.roots = source, roots
        self.folders: list[tuple[str, int, int]] = []
        self.file: tuple[int, int, int, int] | None = None  # descriptor, mode, times and size of the one being written

    def run(self) -> None:
        """Reads to the end. Folders get mode and times last: writes change their times, and modes may deny writes."""
        makers: dict[str, Callable[..., None]]
        makers = {"folder": self.folder, "hard": self.hard, "file": self.begin, "link": self.link, "node": self.node}
        while True:
            kind, *fields = marshal.load(self.source)
            if kind == "data":
                self.write(*fields)
                continue
            self.finish()
            if kind == "end":
                break
            number, path, *about = fields
            makers[kind](number, path, *about)
        for path, mode, times in reversed(self.folders):
            if os.lstat(path).st_uid == os.geteuid():  # others belong to the sandbox and lead to a mount point
                dress(path, mode, times)

    def folder(self, number: int, path: str, mode: int, times: int) -> None:
        with suppress(FileExistsError):  # the root folder, or a parent of a mount point
            os.mkdir(self.roots[number] + path, 0o700)
        self.folders.append((self.roots[number] + path, mode, times))

    def hard(self, number: int, path: str, first: str) -> None:
        os.link(self.roots[number] + first, self.roots[number] + path, follow_symlinks=False)

    def link(self, number: int, path: str, to: str, times: int) -> None:
        os.symlink(to, self.roots[number] + path)
        os.utime(self.roots[number] + path, ns=(times, times), follow_symlinks=False)

    def node(self, number: int, path: str, mode: int, times: int, device: int) -> None:
        os.mknod(self.roots[number] + path, mode, device)
        dress(self.roots[number] + path, stat.S_IMODE(mode), times)

    def begin(self, number: int, path: str, mode: int, times: int, size: int) -> None:
        fd = os.open(self.roots[number] + path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        self.file = fd, mode, times, size

    def write(self, at: int, data: bytes) -> None:
        fd = self.file[0] if self.file else -1
        while data:
            written = os.pwrite(fd, data, at)
            at, data = at + written, data[written:]

    def finish(self) -> None:
        """Closes the file that was written: its end may be a hole."""
        if self.file:
            fd, mode, times, size = self.file
            self.file = None
            os.ftruncate(fd, size)
            dress(fd, mode, times)
            os.close(fd)


def clear(folder: str, device: int) -> None:
    """Removes what a folder of an image holds at the start, except mount points and their parents."""
    for name in os.listdir(folder):
        path = f"{folder}/{name}"
        about = os.lstat(path)
        if not stat.S_ISDIR(about.st_mode):
            os.unlink(path)
        elif about.st_dev == device and about.st_uid == os.geteuid():
            os.chmod(path, 0o700)
            clear(path, device)
            with suppress(OSError):  # the parent of a mount point
                os.rmdir(path)


def unpack(roots: list[str]) -> None:
    for root in roots:
        clear(root, os.lstat(root).st_dev)
    Unpacker(stream(sys.stdin.buffer), roots).run()


def dress(what: str | int, mode: int, times: int) -> None:
    os.chmod(what, mode)
    os.utime(what, ns=(times, times))


if __name__ == "__main__":
    try:
        {"pack": pack, "unpack": unpack, "release": release}[sys.argv[1]](sys.argv[2:])
    except OSError as error:
        sys.exit(str(error))
