"""Registry of the images that token ids refer to, by number. Files are read when the vision tower needs them."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from agentrl.models.vision.family import Pixels
from agentrl.models.vision.processor import ImageProcessor
from agentrl.types.parts.image import ImageRefused
from agentrl.types.parts.placeholders import MOST, number_of

Ints = NDArray[np.int64]


class Places(NamedTuple):
    """The placeholders among tokens: their indices, the number of each one's image, and its place in the image."""

    at: Ints
    number: Ints
    place: Ints


class ImageRegistry:
    """Images by number (`agentrl.types.parts.placeholders`)."""

    def __init__(self, processor: ImageProcessor) -> None:
        self.processor = processor
        self._read: dict[int, tuple[str, Callable[[str], bytes]]] = {}
        self._numbers: list[int] = []

    def __contains__(self, number: int) -> bool:
        return number in self._read

    def add(self, blob: str, read: Callable[[str], bytes]) -> int:
        """Makes an image known. Returns its number."""
        number = number_of(blob)
        if number not in self._read:
            insort(self._numbers, number)
        self._read[number] = blob, read
        return number

    def remove(self, number: int) -> None:
        """Forgets an image."""
        del self._read[number]
        del self._numbers[bisect_right(self._numbers, number) - 1]

    def places(self, token_ids: Ints) -> Places:
        """The placeholders among token ids [n].

        Raises:
            ImageRefused: one is of no image that is known.
        """
        at = np.flatnonzero(token_ids < 0)
        wanted, numbers = -token_ids[at], np.array(self._numbers, np.int64)
        index = np.searchsorted(numbers, wanted, side="right") - 1
        place = wanted - (numbers[index] if len(numbers) else 0)
        if len(at) and (not len(numbers) or (index < 0).any() or (place >= MOST).any()):
            raise ImageRefused("a prompt names an image that is not known", remedy="give the image itself")
        return Places(at, numbers[index] if len(at) else at, place)

    def pixels(self, number: int) -> Pixels:
        """An image as the tower takes it.

        Raises:
            ImageRefused: it cannot be read or decoded.
        """
        blob, read = self._read[number]
        return self.processor.kept.get(blob, lambda: self.processor.pixels(read(blob)))
