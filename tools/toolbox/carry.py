"""File transfer into and out of a sandbox: packs a file or the content of a folder, and unpacks it elsewhere.

Usage: `python3 -I -S carry.py pack PATH [bounded]` writes to stdout, `unpack FOLDER [bounded]` reads from stdin. One
end runs inside, the other on the host; the driver passes the bytes on unread. Any Python 3.9+.

A stream is a sequence of records: kind, mode, modification time (ns), length of the body. A name is a single component:
a record `folder` enters a folder, `up` leaves it. So the cost is linear in depth, and names cannot leave the folder.

Preserves content, modes, times and symbolic links; hard links become separate files. Skips sockets. `bounded` is for
streams out of a sandbox, which may be forged: it limits size, number, depth and path length, sets plain modes, and
refuses links that lead out of FOLDER.

Exits with 0, or prints `ERRNO TEXT` on stderr and exits with 1 (a system call failed here) or 3 (the files or the
stream are invalid).
"""

from __future__ import annotations

import errno
import itertools
import os
import stat
import struct
import sys
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import BinaryIO, NoReturn

MOST_BYTES = 256 << 20  # of all files together
MOST_FILES = 100_000  # with folders and links
MOST_DEEP = 128  # folders
MOST_PATH = 3000  # bytes of a path below FOLDER: the kernel's limit is 4095 with the parent folders
CHUNK = 1 << 18

HEAD = struct.Struct(">cHqI")
FOLDER, UP, FILE, DATA, LINK, END = b"d", b"u", b"f", b"c", b"l", b"z"  # empty DATA ends a FILE


class Refused(Exception):
    """The files or the stream cannot be transferred."""


class Bounds:
    """Counts bytes and files and enforces the limits."""

    def __init__(self, bounded: bool) -> None:
        self.bounded, self.bytes, self.files = bounded, 0, 0
        self.names: list[bytes] = []  # of the folders that were entered

    def add(self, size: int) -> None:
        self.bytes += size
        self.check(self.bytes <= MOST_BYTES, errno.EFBIG, f"more than {MOST_BYTES >> 20} MiB")

    def member(self, name: bytes) -> None:
        self.files += 1
        self.check(self.files <= MOST_FILES, errno.EFBIG, f"more than {MOST_FILES} files and folders")
        length = sum(map(len, self.names)) + len(self.names) + len(name)
        self.check(length <= MOST_PATH, errno.ENAMETOOLONG, f"a path of more than {MOST_PATH} bytes")

    def enter(self, name: bytes) -> None:
        self.names.append(name)
        self.check(len(self.names) <= MOST_DEEP, errno.ENAMETOOLONG, f"deeper than {MOST_DEEP} folders")

    def leave(self) -> None:
        self.names.pop()

    def check(self, holds: bool, number: int, otherwise: str) -> None:
        if self.bounded and not holds:
            raise Refused(number, otherwise)


# Packing


class Packer:
    def __init__(self, out: BinaryIO, bounded: bool) -> None:
        self.out, self.bounds = out, Bounds(bounded)

    def put(self, kind: bytes, body: bytes = b"", about: os.stat_result | None = None) -> None:
        mode, changed = (stat.S_IMODE(about.st_mode), about.st_mtime_ns) if about else (0, 0)
        self.out.write(HEAD.pack(kind, mode, changed, len(body)) + body)

    def file(self, name: bytes, fd: int, about: os.stat_result) -> None:
        if self.bounds.bounded and about.st_size > MOST_BYTES:
            self.bounds.add(about.st_size)  # fails before reading
        self.put(FILE, name, about)
        while True:
            data = os.read(fd, CHUNK)
            self.bounds.add(len(data))
            self.put(DATA, data)
            if not data:
                return

    def folder(self, fd: int) -> None:
        stack = [(fd, os.scandir(fd))]
        while stack:
            here, entries = stack[-1]
            entry = next(entries, None)
            if entry is None:
                entries.close()
                os.close(here)
                stack.pop()
                if stack:
                    self.put(UP)
                    self.bounds.leave()
                continue
            name, about = os.fsencode(entry.name), entry.stat(follow_symlinks=False)
            if stat.S_ISSOCK(about.st_mode):
                continue
            self.bounds.member(name)
            if stat.S_ISLNK(about.st_mode):
                self.put(LINK, name, about)
                self.put(DATA, os.readlink(name, dir_fd=here))
            elif stat.S_ISDIR(about.st_mode):
                self.bounds.enter(name)
                self.put(FOLDER, name, about)
                inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=here)
                stack.append((inner, os.scandir(inner)))
            elif stat.S_ISREG(about.st_mode):
                inner = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=here)
                self.file(name, inner, about)
                os.close(inner)
            else:
                raise Refused(errno.EINVAL, f"{entry.name!a} is a device or a pipe")


def pack(path: str, bounded: bool) -> None:
    """Packs a file or folder. Follows PATH itself if it is a link."""
    packer = Packer(sys.stdout.buffer, bounded)
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    about = os.fstat(fd)
    if stat.S_ISDIR(about.st_mode):
        packer.folder(fd)
    elif stat.S_ISREG(about.st_mode):
        packer.file(os.fsencode(os.path.basename(path)), fd, about)
    else:
        raise Refused(errno.EINVAL, "neither a regular file nor a folder")
    packer.put(END)
    packer.out.flush()


# Unpacking: the input is untrusted


class Unpacker:
    """Creates files below a folder. Traverses folders by descriptors and follows no links."""

    def __init__(self, source: BinaryIO, folder: str, bounded: bool) -> None:
        self.source, self.bounds = source, Bounds(bounded)
        self.stack = [(os.open(folder, os.O_RDONLY | os.O_DIRECTORY), 0, 0)]

    def take(self) -> tuple[bytes, int, int, bytes]:
        head = self.source.read(HEAD.size)
        if len(head) < HEAD.size:
            raise Refused(errno.EPROTO, "the stream ended early")
        kind, mode, changed, length = HEAD.unpack(head)
        body = self.source.read(length) if length <= CHUNK else b""
        if len(body) < length:
            raise Refused(errno.EPROTO, "the stream ended early")
        return kind, mode, changed, body

    def run(self) -> None:
        makers = {FOLDER: self.folder, FILE: self.file, LINK: self.link}
        while True:
            kind, mode, changed, body = self.take()
            if kind == UP and len(self.stack) > 1:
                self.up()
            elif kind == END and len(self.stack) == 1:
                return
            elif kind in makers and body not in (b"", b".", b"..") and not set(body) & set(b"/\0"):
                self.bounds.member(body)
                makers[kind](self.stack[-1][0], body, mode, changed)
            else:
                raise Refused(errno.EPROTO, f"{ascii(body)[1:]} is no name, or comes where none may")

    def folder(self, here: int, name: bytes, mode: int, changed: int) -> None:
        self.bounds.enter(name)
        with suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=here)
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
        try:
            fd = os.open(name, flags, dir_fd=here)
        except NotADirectoryError:  # another kind of file existed
            os.unlink(name, dir_fd=here)
            os.mkdir(name, 0o700, dir_fd=here)
            fd = os.open(name, flags, dir_fd=here)
        self.stack.append((fd, 0o755 if self.bounds.bounded else mode, changed))

    def up(self) -> None:
        fd, mode, changed = self.stack.pop()
        self.dress(fd, mode, changed)  # last: writes change its time, and its mode may deny writes
        os.close(fd)
        self.bounds.leave()

    def file(self, here: int, name: bytes, mode: int, changed: int) -> None:
        self.clear(here, name)
        fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=here)
        while True:
            kind, _, _, data = self.take()
            if kind != DATA:
                raise Refused(errno.EPROTO, "the content of a file is not whole")
            if not data:
                break
            self.bounds.add(len(data))
            while data:
                data = data[os.write(fd, data) :]
        plain = 0o755 if mode & 0o100 else 0o644
        self.dress(fd, plain if self.bounds.bounded else mode, changed)
        os.close(fd)

    def link(self, here: int, name: bytes, mode: int, changed: int) -> None:
        kind, _, _, target = self.take()
        parts = target.split(b"/")
        ups = len(list(itertools.takewhile(b"..".__eq__, parts)))
        inside = parts[0] and b".." not in parts[ups:] and ups < len(self.stack)
        if kind != DATA or b"\0" in target:
            raise Refused(errno.EPROTO, f"the link {ascii(name)[1:]} has no target")
        if self.bounds.bounded and not inside:
            raise Refused(errno.EPERM, f"the link {ascii(name)[1:]} leads out of the folder")
        self.clear(here, name)
        os.symlink(target, name, dir_fd=here)

    def clear(self, here: int, name: bytes) -> None:
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=here)

    def dress(self, fd: int, mode: int, changed: int) -> None:
        os.chmod(fd, mode & 0o777)
        changed = min(max(changed, 0), 1 << 62)
        os.utime(fd, ns=(changed, changed))


def unpack(folder: str, bounded: bool) -> None:
    try:
        os.makedirs(folder, exist_ok=True)
        unpacker = Unpacker(sys.stdin.buffer, folder, bounded)
    except OSError as error:  # not caused by the stream
        failed(1, error)
    unpacker.run()


OF_THE_HOST = {
    errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EACCES,
    errno.EPERM, errno.EFBIG,
}  # fmt: skip
"""Errors caused by the unpacking machine; all others (an invalid name) are caused by the stream."""


def failed(code: int, error: OSError) -> NoReturn:
    fail(code, error.errno, error.strerror)


def fail(code: int, number: int | None, text: str | None) -> NoReturn:
    sys.stderr.write(f"{number} {text}")
    sys.stderr.flush()
    os._exit(code)  # skips flushing stdout, which may have no reader


if __name__ == "__main__":
    try:
        {"pack": pack, "unpack": unpack}[sys.argv[1]](sys.argv[2], sys.argv[3:] == ["bounded"])
    except Refused as refusal:
        fail(3, *refusal.args)
    except OSError as error:
        failed(1 if error.errno in OF_THE_HOST else 3, error)
