"""Bodies of HTTP replies: unpacked and bounded as they arrive, before anything is made of them.

A server may send a megabyte that unpacks to a thousand. Clients therefore leave unpacking to `Body`, which gives small
parts and knows when to stop.
"""

from __future__ import annotations

import asyncio
import math
import zlib
from collections.abc import AsyncIterable, Iterator
from dataclasses import dataclass
from typing import Any

from agentrl.types.parts.foreign_json import VALUES, marks

PACKINGS = "gzip, deflate"
"""What clients may ask for (`Accept-Encoding`)."""

REPLY = 64 << 20
"""Bytes of a reply of a model's server."""

_PART = 1 << 18
"""Bytes that are unpacked at a time."""

_WINDOWS = {
    "identity": 0,
    "": 0,
    "gzip": zlib.MAX_WBITS | 16,
    "x-gzip": zlib.MAX_WBITS | 16,
    "deflate": zlib.MAX_WBITS,
}


class BodyRefused(ValueError):
    """A body is too large, damaged, or packed as nobody asked for."""


class TooLarge(BodyRefused):
    """A body has more than it may."""


class BrokenOff(BodyRefused):
    """A packed body ends before its end."""


@dataclass(frozen=True)
class Bounds:
    """The most that a body may have.

    Attributes:
        most: bytes, as it is sent and as it is unpacked.
        packed: bytes of one that is sent packed, unpacked: what it cost to send says nothing of them.
        values: values of JSON in one that is sent packed: each of two characters takes a hundred bytes when it is
            read. What is no JSON may have any number: `math.inf`.
    """

    most: int = REPLY
    packed: int = 16 << 20
    values: float = VALUES


class Body:
    """A body that arrives.

    Args:
        encoding: the header `Content-Encoding`.
        bounds: None: it is a stream without an end, which its reader bounds.

    Attributes:
        over: whether its end has come. What follows is none of it.
        packed: whether it is unpacked here.

    Raises:
        BodyRefused: it is packed as nobody asked for.
    """

    def __init__(self, encoding: str, bounds: Bounds | None) -> None:
        window = _WINDOWS.get(encoding.strip().lower())
        if window is None:
            raise BodyRefused(f"it is packed as {encoding[:40]!r}, which was not asked for")
        self.over = False
        self._window = window
        self.packed = window != 0
        self._most = self._most_values = math.inf
        if bounds is not None:
            self._most = min(bounds.most, bounds.packed) if window else bounds.most
            self._most_values = bounds.values if window else math.inf
        self._unpack: Any = None
        self._sent = self._made = self._values = 0

    def take(self, part: bytes) -> Iterator[bytes]:
        """Unpacks a received part and yields it in small pieces.

        Raises:
            TooLarge: it has more than it may. All that it may have was given.
            BodyRefused: it is damaged.
        """
        self._sent += len(part)
        for piece in self._unpacked(part) if self._window else [part]:
            self._made += len(piece)
            if self._made > self._most:
                yield piece[: int(self._most) - self._made]
                raise self._too_large()
            self._count(piece)
            yield piece
        if self._sent > self._most:  # also what unpacks to nothing
            raise self._too_large()

    def end(self) -> None:
        """Nothing more arrives.

        Raises:
            BrokenOff: it is packed, and its end has not come.
        """
        if self._unpack is not None and not self.over:
            raise BrokenOff("it is packed and breaks off")

    def _unpacked(self, part: bytes) -> Iterator[bytes]:
        while part and not self.over:
            unpack = self._unpack = self._unpack or self._unpacker(part)
            try:
                piece = unpack.decompress(part, _PART)
            except zlib.error as error:
                raise BodyRefused(f"it is packed and damaged ({error})") from None
            part, self.over = unpack.unconsumed_tail, unpack.eof
            yield piece

    def _unpacker(self, part: bytes) -> Any:
        # RFC 9110 8.4.1.2: deflate is the zlib format; some servers leave out its header.
        raw = self._window == zlib.MAX_WBITS and part[0] & 15 != 8
        return zlib.decompressobj(-self._window if raw else self._window)

    def _count(self, piece: bytes) -> None:
        if self._most_values == math.inf:
            return
        self._values += marks(piece)
        if self._values > self._most_values:
            raise TooLarge(f"it is packed and has more than {self._most_values:,} values")

    def _too_large(self) -> TooLarge:
        mib = self._most / (1 << 20)
        size = f"{mib:g} MiB" if mib % 1 == 0 else f"{self._most / 1e6:g} MB"
        return TooLarge(f"it has more than {size}")


async def whole(parts: AsyncIterable[bytes], encoding: str, bounds: Bounds) -> bytearray:
    """A body, unpacked.

    Raises:
        BodyRefused: it is larger than it may be, damaged, or packed as nobody asked for.
    """
    body, found = Body(encoding, bounds), bytearray()
    async for part in parts:
        for piece in body.take(part):
            found += piece
            if body.packed:
                await asyncio.sleep(0)  # a small part may unpack to much: others run meanwhile
        if body.over:
            return found
    body.end()
    return found
