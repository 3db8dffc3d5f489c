"""Token ids of images in records: negative, and derived from the image's hash.

A model uses one placeholder token for all images. In records, the k-th placeholder of an image has the id
`-(number of the image + k)` instead, where the number comes from the hash of its file. Two prompts are then equal if
and only if their texts and images are: code that compares, shares or packs by equal tokens needs no knowledge of
images. Engines and models convert ids back to the placeholder token.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

MOST = 1 << 24
"""Maximum of placeholders of one image."""


@lru_cache(maxsize=4096)
def number_of(blob: str) -> int:
    """Returns the number of an image: 1 to 2**62, so that ids are 64-bit integers."""
    return 1 + (int.from_bytes(hashlib.sha256(blob.encode()).digest()[:8], "big") >> 2)


def ids_of(blob: str, count: int) -> list[int]:
    """Returns the ids of an image's placeholders."""
    first = number_of(blob)
    return list(range(-first, -first - count, -1))


class Placed(NamedTuple):
    """Placeholder: its index among the tokens, its image (None: unknown), its position in the image."""

    at: int
    blob: str | None
    position: int


def placed(token_ids: Sequence[int], blobs: Iterable[str]) -> Iterator[Placed]:
    """Yields the placeholders among tokens, given the possible images."""
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
    """Describes the first fault of the placeholders among the tokens of a step: each image must be complete.

    Args:
        counts: placeholders by image, of earlier steps; updated.
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
