"""Bodies of HTTP replies: read, unpacked and bounded, before anything is made of them.

A server may send a megabyte that unpacks to a thousand. Clients therefore leave unpacking to `unpacked`, which gives
small parts, and read by `beginning` or `whole`, which know when to stop.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterable, AsyncIterator, Mapping
from typing import Any

PACKINGS = "gzip, deflate"
"""What clients may ask for (`Accept-Encoding`)."""

REPLY = 64 << 20
"""Bytes of a reply of a model's server."""

_PACKED = 16 << 20
"""Bytes that a packed body may have when it is unpacked: what it cost to send says nothing of them."""

_VALUES = 500_000
"""Values of JSON in a packed body: each of two characters takes a hundred bytes when it is read."""

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
    """A body is too large, damaged, or packed as nobody asked for."""


class BrokenOff(BodyRefused):
    """A packed body ends before its end."""


async def unpacked(parts: AsyncIterable[bytes], encoding: str) -> AsyncIterator[bytes]:
    """The parts of a body, unpacked, none of them large.

    Args:
        encoding: the header `Content-Encoding`.

    Raises:
        BodyRefused: it is damaged, or packed in another way.
        BrokenOff: it ends before its end; all there is was given.
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
                await asyncio.sleep(0)  # a small part may unpack to much: others run meanwhile
        if unpack.eof:  # what follows is none of it
            return
    if unpack is not None:
        raise BrokenOff("it is packed and breaks off")


async def beginning(parts: AsyncIterable[bytes], encoding: str, most: int) -> tuple[bytearray, bool]:
    """The first `most` bytes of a body, and whether there are more. Of what is packed no more is read, either.

    Raises:
        BodyRefused: it is damaged, or packed as nobody asked for.
    """
    found, more, broken = await _read(parts, encoding, most)
    return found, more or broken is not None


async def whole(parts: AsyncIterable[bytes], encoding: str, most: int = REPLY) -> bytearray:
    """A body that is at most `most` bytes long; a packed one also 16 MiB and half a million values.

    Raises:
        BodyRefused: it is larger, damaged, or packed as nobody asked for.
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
