"""JSON that an agent may have written: refused before it is read, if reading it would take seconds or gigabytes."""

from __future__ import annotations

import json
import re
from typing import Any

VALUES = 500_000
"""The most values of a text: each of two characters takes a hundred bytes when it is read, and a microsecond."""


def read_json(data: bytes | bytearray) -> Any:
    """Reads a JSON text in UTF-8 from a source that may mean harm.

    Raises:
        ValueError: it is not JSON, has more than half a million values, or is nested too deep.
    """
    if has_many_values(data):
        raise ValueError(f"it has more than {VALUES:,} values")
    try:
        return json.loads(data.decode())
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def has_many_values(data: bytes | bytearray) -> bool:
    """Returns True if a JSON text has more than half a million values. Reading it would take gigabytes."""
    if marks(data) <= VALUES:  # an upper bound: it counts those in strings too
        return False
    found = at = 0
    for string in _STRING.finditer(data):
        found += 1 + marks(data[at : string.start()])
        if found > VALUES:
            return True
        at = string.end()
    return found + marks(data[at:]) > VALUES


_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\Z)', re.DOTALL)


def marks(text: bytes | bytearray) -> int:
    """Returns the number of characters that stand before values, those in strings included."""
    return sum(map(text.count, (b",", b"[", b"{")))
