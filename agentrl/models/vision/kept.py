"""Pixels of the images that were used last, so that small ones are not decoded again for every minibatch."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from agentrl.models.vision.family import Pixels

MOST_BYTES = 64 * 2**20
"""Pixels that are kept: all of some thousand small pictures, a few screenshots."""


class KeptPixels:
    """Pixels by the hash of the image, up to a number of bytes. Engine and trainer may share it.

    Args:
        most: bytes of tensors.
    """

    def __init__(self, most: int = MOST_BYTES) -> None:
        self._most, self._used = most, 0
        self._kept: OrderedDict[str, Pixels] = OrderedDict()
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process begins with none."""
        return KeptPixels, (self._most,)

    def get(self, blob: str, make: Callable[[], Pixels]) -> Pixels:
        """The pixels of an image; made if they are not kept. What `make` raises is passed on."""
        with self._lock:
            if (found := self._kept.get(blob)) is not None:
                self._kept.move_to_end(blob)
                return found
        made = make()
        with self._lock:
            if blob not in self._kept and _bytes(made) <= self._most:
                self._kept[blob] = made
                self._used += _bytes(made)
            while self._used > self._most:
                self._used -= _bytes(self._kept.popitem(last=False)[1])
        return made


def _bytes(pixels: Pixels) -> int:
    return sum(tensor.nbytes for tensor in pixels.inputs.values())
