"""Framed JSON: messages between the driver and a program, over the program's stdin and stdout.

A frame is two big-endian uint32 (length of the message, of the body), the message (JSON in UTF-8), the body (any
bytes). Standard library of any Python 3.9+. The driver's end: `agentrl/sandbox/frames.py`.
"""

from __future__ import annotations

import json
import os
import struct
from typing import Any, BinaryIO

HEAD = struct.Struct(">II")


def frame(message: object, body: bytes = b"") -> bytes:
    """Encodes a frame."""
    text = json.dumps(message, separators=(",", ":")).encode()
    return HEAD.pack(len(text), len(body)) + text + body


def next_frame(stream: BinaryIO) -> tuple[Any, bytes] | None:
    """Reads a message and its body from a blocking stream; None at its end."""
    head = stream.read(HEAD.size)
    if len(head) < HEAD.size:
        return None
    length, size = HEAD.unpack(head)
    return json.loads(stream.read(length)), stream.read(size)


def claimed_stdout() -> BinaryIO:
    """Returns stdout, for frames alone: what libraries print goes to stderr from now on."""
    out = os.dup(1)
    os.dup2(2, 1)
    return os.fdopen(out, "wb")
