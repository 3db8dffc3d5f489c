"""Small images for tests, made without a library."""

from __future__ import annotations

import struct
import zlib


def png(width: int = 8, height: int = 6, colour: tuple[int, int, int] = (200, 30, 30)) -> bytes:
    """A PNG of one colour."""
    rows = (b"\0" + bytes(colour) * width) * height
    parts = (
        _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)),
        _chunk(b"IDAT", zlib.compress(rows)),
        _chunk(b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


RED, BLUE = png(), png(colour=(20, 30, 200))
"""Two different images of one size."""
