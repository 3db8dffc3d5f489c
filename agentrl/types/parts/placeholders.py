"""Token ids of images in records: negative, and derived from the image's hash.

A model gives all images the same placeholder token. In records, the k-th placeholder of an image has the id
`-(number of the image + k)` instead, where the number comes from the hash of its file. Two prompts are equal, then, if
and only if their texts and images are: what compares, shares or packs by equal tokens is right without knowing of
images. The way back to the model's placeholder is at the engine's and the model's door.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

MOST = 1 << 24
"""Placeholders of one image, at most."""


@lru_cache(maxsize=4096)
def number_of(blob: str) -> int:
    """The number of an image: 1 to 2**62, so that ids are 64-bit integers."""
    return 1 + (int.from_bytes(hashlib.sha256(blob.encode()).digest()[:8], "big") >> 2)


def ids_of(blob: str, count: int) -> list[int]:
    """The ids of an image's placeholders."""
    first = number_of(blob)
    return list(range(-first, -first - count, -1))


class Placed(NamedTuple):
    """A placeholder: where it is among the tokens, its image (None: of none that is known), its place in the image."""

    at: int
    blob: str | None
    position: int


def placed(token_ids: Sequence[int], blobs: Iterable[str]) -> Iterator[Placed]:
    """The placeholders among tokens, given the images that there may be."""
    if min(token_ids, default=0) >= 0:
        return
    known = sorted((number_of(blob), blob) for blob in set(blobs))
    numbers = [number for number, _ in known]
    for index, token in enumerate(token_ids):
        if token < 0:
            at = bisect_right(numbers, -token) - 1
            position = -token - numbers[at] if at >= 0 else MOST
            yield Placed(index, known[at][1], position) if position < MOST else Placed(index, None, 0)


def fault_in(token_ids: Sequence[int], blobs: Iterable[str], counts: dict[str, int]) -> str | None:
    """What is wrong with the placeholders among the tokens of a step: each image must be whole.

    Args:
        counts: placeholders by image, of those that were seen before; grows.
    """
    last: dict[str, int] = {}
    ended: list[tuple[str, int]] = []
    for index, blob, position in placed(token_ids, blobs):
        if blob is None:
            return f"token {index} is {token_ids[index]}, which names no image of the episode"
        if position != 0 and position != last.get(blob, -2) + 1:
            return f"token {index} is placeholder {position} of image {blob[:12]}, behind {last.get(blob, 'none')}"
        if position == 0 and blob in last:
            ended.append((blob, last[blob]))
        last[blob] = position
    for blob, end in [*ended, *last.items()]:
        if counts.setdefault(blob, end + 1) != end + 1:
            return f"image {blob[:12]} has {end + 1} placeholders, elsewhere {counts[blob]}"
    return None
