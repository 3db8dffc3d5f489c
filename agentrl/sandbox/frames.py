"""Framed JSON to and from a program, whose end is `tools/shared/frames.py`.

A frame is two big-endian uint32 (length of the message, of the body), the message (JSON in UTF-8), and the body. Of a
sandbox, anything may come: other programs may write where ours does.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from typing import Any

from agentrl.types.parts.foreign_json import read_json

_HEAD = struct.Struct(">II")


def frame(message: Mapping[str, Any], body: bytes = b"") -> bytes:
    """Encodes a frame."""
    text = json.dumps(message, separators=(",", ":")).encode()
    return _HEAD.pack(len(text), len(body)) + text + body


class Frames:
    """Decoder of a stream.

    Args:
        most: maximum of bytes of a frame.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._inbox = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[dict[str, Any], bytes]]:
        """Yields the messages that data completes, with their bodies.

        Raises:
            ValueError: it is no frame, no JSON object, or too long.
        """
        self._inbox += data
        while len(self._inbox) >= _HEAD.size:
            length, size = _HEAD.unpack_from(self._inbox)
            if length + size > self._most:
                raise ValueError(f"a message of more than {self._most} bytes")
            start, end = _HEAD.size + length, _HEAD.size + length + size
            if len(self._inbox) < end:
                return
            message, body = read_json(self._inbox[_HEAD.size : start]), bytes(self._inbox[start:end])
            del self._inbox[:end]
            if not isinstance(message, dict):
                raise ValueError(f"a message that is no JSON object: {message!r:.100}")
            yield message, body
