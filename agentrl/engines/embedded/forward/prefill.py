"""The layout of a prefill: splits the missing tokens of rows into few passes with little padding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

FORWARD_TOKENS = 2048
"""Maximum tokens of one pass, padding included. Bounds the memory of its activations."""


class Fill(NamedTuple):
    """Missing tokens of a row of the arena, and the slot of the first. All slots before it are filled."""

    row: int
    start: int
    token_ids: list[int]


class Piece(NamedTuple):
    """Consecutive tokens of a row, the slot of the first, and whether they complete the row."""

    row: int
    start: int
    token_ids: list[int]
    ends: bool


Side = Sequence[Piece]
"""Pieces of consecutive rows, the shortest first, which attend together, padded to the longest."""


def passes(fills: Sequence[Fill]) -> Iterator[list[Side]]:
    """Splits `fills` into passes, in order. A pass has each row at most once.

    Args:
        fills: missing tokens of consecutive rows, the shortest first.
    """
    together: list[Side] = []
    used = 0
    for side in sides(fills):
        size = len(side) * len(side[-1].token_ids)
        if together and (used + size > FORWARD_TOKENS or side[0].row <= together[-1][-1].row):
            yield together
            together, used = [], 0
        together.append(side)
        used += size
    if together:
        yield together


def sides(fills: Sequence[Fill]) -> Iterator[Side]:
    """Groups rows with similar numbers of missing tokens, at most `FORWARD_TOKENS` with padding. Longer rows are split
    into several parts, from left to right."""
    at = 0
    while at < len(fills):
        lacks = [len(fill.token_ids) for fill in fills[at:]]
        count = 1
        while (
            count < len(lacks)
            and lacks[count] * (count + 1) <= FORWARD_TOKENS
            and lacks[count] <= 2 * lacks[0] + 16  # little padding
        ):
            count += 1
        yield from _parts(fills[at : at + count])
        at += count


def _parts(fills: Sequence[Fill]) -> Iterator[Side]:
    size = max(1, FORWARD_TOKENS // len(fills))
    for done in range(0, len(fills[-1].token_ids), size):
        yield [
            Piece(row, start + done, ids[done : done + size], ends=len(ids) <= done + size)
            for row, start, ids in fills
            if len(ids) > done
        ]
