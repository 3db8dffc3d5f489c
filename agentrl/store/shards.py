"""Shards: append-only files of JSON lines, with one zstd frame per line.

Each frame has a checksum and is found, read and checked on its own, so damage affects only single records. The files
are plain zstd: `zstdcat 00000.jsonl.zst` prints the lines. A writer never appends to a shard of an earlier process: it
only cuts off the torn last frame that a killed process left.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal, NamedTuple

import zstandard

from agentrl.types.errors import StoreError

SUFFIX = ".jsonl.zst"
MAGIC = zstandard.FRAME_HEADER  # not UTF-8, so never part of a JSON line that zstd stored uncompressed
_HEADER_MAX = 18


class Location(NamedTuple):
    """The location of a record: shard file name, byte offset and length of its frame."""

    shard: str
    offset: int
    length: int

    def __str__(self) -> str:
        return f"{self.shard}@{self.offset}"


class Frame(NamedTuple):
    """A record found by `scan`. `data` is None unless `state` is `whole`."""

    location: Location
    state: Literal["whole", "damaged", "torn"]
    data: bytes | None


class Shards:
    """A folder of shards, written by one process and read by any number.

    Args:
        folder: the folder, created with the first record.
        roll_bytes: size beyond which the next shard is started.
    """

    def __init__(self, folder: Path, roll_bytes: int = 64 << 20) -> None:
        self.folder = folder
        self.roll_bytes = roll_bytes
        self._compress = zstandard.ZstdCompressor(level=3, write_checksum=True).compress
        self._name = ""
        self._fd = -1
        self._at = 0

    def names(self) -> list[str]:
        """The existing shards, oldest first."""
        return sorted(path.name for path in self.folder.glob(f"*{SUFFIX}"))

    def size(self, name: str) -> int:
        """Size of a shard in bytes, 0 if it does not exist."""
        path = self.folder / name
        return path.stat().st_size if path.exists() else 0

    def append(self, line: bytes) -> Location:
        """Stores one line (without its newline). After the return it survives the death of the process.

        Raises:
            StoreError: the disk is full or failed. No part of the record remains.
        """
        if self._fd < 0 or self._at >= self.roll_bytes:
            self._begin()
        frame = self._compress(line + b"\n")
        try:
            _write_all(self._fd, frame)
        except OSError as error:
            os.ftruncate(self._fd, self._at)
            raise StoreError(
                f"cannot write: {error.strerror}", place=str(self.folder / self._name), remedy="free some disk space"
            ) from error
        location = Location(self._name, self._at, len(frame))
        self._at += len(frame)
        return location

    def read(self, location: Location) -> bytes:
        """The line at `location`.

        Raises:
            StoreError: the record is damaged, or the shard is missing.
        """
        try:
            with open(self.folder / location.shard, "rb") as file:
                file.seek(location.offset)
                return _decompress(file.read(location.length)).rstrip(b"\n")
        except (OSError, zstandard.ZstdError, MemoryError) as error:
            raise StoreError(
                f"a record cannot be read: {error}",
                place=f"{self.folder}/{location}",
                remedy="restore the file from a copy; the other records are readable",
            ) from error

    def scan(self, start: Mapping[str, int] | None = None) -> Iterator[Frame]:
        """All frames of all shards in the order of writing, from `start[shard]` (default 0) on.

        After a damaged frame the scan continues with the next one. A frame that is cut off by the end of the file is
        `torn`: its writer was killed, or is writing it now.
        """
        for name in self.names():
            yield from self._scan_one(name, (start or {}).get(name, 0))

    def cut(self, location: Location) -> None:
        """Cuts a torn last frame off its shard."""
        os.truncate(self.folder / location.shard, location.offset)

    def sync(self) -> None:
        """Syncs appended records to disk, so that they survive a power cut."""
        if self._fd >= 0:
            os.fsync(self._fd)

    def close(self) -> None:
        """Closes the current shard. The next append starts a new one."""
        if self._fd >= 0:
            os.fsync(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _begin(self) -> None:
        self.close()
        self.folder.mkdir(parents=True, exist_ok=True)
        names = self.names()
        number = int(names[-1].removesuffix(SUFFIX)) + 1 if names else 0
        self._name, self._at = f"{number:05d}{SUFFIX}", 0
        self._fd = os.open(self.folder / self._name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)

    def _scan_one(self, name: str, at: int) -> Iterator[Frame]:
        size = self.size(name)
        if at >= size:
            return
        # Mapped, not read: a scan needs the memory of one record.
        with open(self.folder / name, "rb") as file, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as data:
            while at < size:
                end = _frame_end(data, at)
                try:
                    line = _decompress(data[at:end]) if end is not None and end <= size else None
                except (zstandard.ZstdError, MemoryError):
                    line = None
                if line is not None and end is not None:
                    yield Frame(Location(name, at, end - at), "whole", line.rstrip(b"\n"))
                    at = end
                    continue
                following = data.find(MAGIC, at + 1)
                cut = following < 0 and end is not None and end > size
                following = size if following < 0 else following
                yield Frame(Location(name, at, following - at), "torn" if cut else "damaged", None)
                at = following


def _decompress(frame: bytes) -> bytes:
    """Decompresses one frame. A decompressor serves one thread at a time, so each call makes one (a microsecond)."""
    return zstandard.ZstdDecompressor().decompress(frame)


def _frame_end(data: mmap.mmap, start: int) -> int | None:
    """The end of the frame at `start` (beyond the end of the file if it is torn), or None if no frame starts there.

    Reads the block headers (RFC 8878, 3.1.1), which is cheap compared to decompression.
    """
    size = len(data)
    head = data[start : start + _HEADER_MAX]
    if not head.startswith(MAGIC[: len(head)]):
        return None
    try:
        checksum = 4 * zstandard.get_frame_parameters(head).has_checksum
        at = start + zstandard.frame_header_size(head)
    except zstandard.ZstdError:
        return size + 1 if len(head) < _HEADER_MAX else None
    while at + 3 <= size:
        block = int.from_bytes(data[at : at + 3], "little")
        last, kind, length = block & 1, block >> 1 & 3, block >> 3
        if kind == 3:  # reserved
            return None
        at += 3 + (1 if kind == 1 else length)  # kind 1: one byte, repeated `length` times
        if last:
            return at + checksum
    return size + 1


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
