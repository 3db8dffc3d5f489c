"""Reads and unpacks bodies of HTTP replies, with limits on their size.

A megabyte may unpack to a gigabyte. Clients therefore leave unpacking to `unpacked`, which yields small parts, and
read by `beginning` or `whole`, which stop at a limit.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterable, AsyncIterator, Mapping
from typing import Any

PACKINGS = "gzip, deflate"
"""Value of `Accept-Encoding` of clients."""

REPLY = 64 << 20
"""Maximum of bytes of a reply of a model's server."""

_PACKED = 16 << 20
"""Maximum of bytes of a packed body after unpacking: its size on the wire does not bound them."""

_VALUES = 500_000
"""Maximum of JSON values in a packed body: one of two characters takes a hundred bytes when parsed."""

_PART = 1 << 18
"""Bytes that are unpacked at a time."""

_WINDOWS: Mapping[str, int] = {
    "identity": 0,
    "": 0,
    "gzip": zlib.MAX_WBITS | 16,
    "x-gzip": zlib.MAX_WBITS | 16,
    "deflate": zlib.MAX_WBITS,
}


class BodyRefused(ValueError):
    """A body is too large, damaged, or in an encoding that was not requested."""


class BrokenOff(BodyRefused):
    """A packed body is truncated."""


async def unpacked(parts: AsyncIterable[bytes], encoding: str) -> AsyncIterator[bytes]:
    """Yields the parts of a body, unpacked, none of them large.

    Args:
        encoding: the header `Content-Encoding`.

    Raises:
        BodyRefused: it is damaged, or packed in another way.
        BrokenOff: it is truncated; all available parts were yielded.
    """
    window = _WINDOWS.get(encoding.strip().lower())
    if window is None:
        raise BodyRefused(f"it is packed as {encoding[:40]!r}, which was not asked for")
    unpack: Any = None
    async for part in parts:
        if not window:
            yield part
            continue
        # RFC 9110 8.4.1.2: deflate is the zlib format; some servers leave out its header.
        raw = unpack is None and window == zlib.MAX_WBITS and part and part[0] & 15 != 8
        unpack = unpack or zlib.decompressobj(-window if raw else window)
        while part:
            try:
                yield unpack.decompress(part, _PART)
            except zlib.error as error:
                raise BodyRefused(f"it is packed and damaged ({error})") from None
            if part := unpack.unconsumed_tail:
                await asyncio.sleep(0)  # a small part may unpack to a large one: let other tasks run
        if unpack.eof:  # later bytes are not part of it
            return
    if unpack is not None:
        raise BrokenOff("it is packed and breaks off")


async def beginning(parts: AsyncIterable[bytes], encoding: str, most: int) -> tuple[bytearray, bool]:
    """Returns the first `most` bytes of a body, and whether more follow. At most as many packed bytes are read.

    Raises:
        BodyRefused: it is damaged, or in an encoding that was not requested.
    """
    found, more, broken = await _read(parts, encoding, most)
    return found, more or broken is not None


async def whole(parts: AsyncIterable[bytes], encoding: str, most: int = REPLY) -> bytearray:
    """Returns a body of at most `most` bytes; if packed, also at most 16 MiB and half a million values.

    Raises:
        BodyRefused: it is larger, damaged, or in an encoding that was not requested.
    """
    packed = _WINDOWS.get(encoding.strip().lower()) != 0
    limit = min(most, _PACKED) if packed else most
    found, more, broken = await _read(parts, encoding, limit)
    if more:
        raise BodyRefused(f"it has more than {limit / (1 << 20):.3g} MiB")
    if broken is not None:
        raise broken
    if packed and sum(map(found.count, (b",", b"[", b"{"))) > _VALUES:
        raise BodyRefused(f"it is packed and has more than {_VALUES:,} values")
    return found


async def _read(parts: AsyncIterable[bytes], encoding: str, most: int) -> tuple[bytearray, bool, BrokenOff | None]:
    found, sent, broken = bytearray(), 0, None

    async def read() -> AsyncIterator[bytes]:
        nonlocal sent
        async for part in parts:
            sent += len(part)
            yield part
            if sent > most:
                return

    try:
        async for part in unpacked(read(), encoding):
            found += part
            if len(found) > most:
                break
    except BrokenOff as error:
        broken = error
    more = sent > most or len(found) > most
    del found[most:]
    return found, more, broken
