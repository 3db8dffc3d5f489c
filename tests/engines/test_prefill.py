"""The layout of a prefill."""

from __future__ import annotations

import random

import pytest

from agentrl.engines.embedded.forward.prefill import FORWARD_TOKENS, Fill, passes


@pytest.mark.parametrize("seed", range(20))
def test_passes_hold_every_token_once_within_the_bound(seed: int) -> None:
    draw = random.Random(seed)
    lengths = sorted(draw.choice([0, 1, 3, 20, 300, 3000, 5000]) for _ in range(draw.randint(1, 40)))
    fills = [Fill(row, draw.randint(0, 9), list(range(length))) for row, length in enumerate(lengths, 5)]
    found: dict[int, list[int]] = {fill.row: [] for fill in fills}
    ended = []
    for together in passes(fills):
        pieces = [piece for side in together for piece in side]
        assert sum(len(side) * len(side[-1].token_ids) for side in together) <= FORWARD_TOKENS
        assert len({piece.row for piece in pieces}) == len(pieces)
        for side in together:
            rows, lacking = [piece.row for piece in side], [len(piece.token_ids) for piece in side]
            assert rows == list(range(rows[0], rows[0] + len(rows)))
            assert lacking == sorted(lacking)
        for piece in pieces:
            assert piece.start == fills[piece.row - 5].start + len(found[piece.row])
            found[piece.row] += piece.token_ids
            ended += [piece.row] if piece.ends else []
    assert found == {fill.row: fill.token_ids for fill in fills}
    assert ended == [fill.row for fill in fills if fill.token_ids]


def test_rows_that_lack_different_amounts_share_a_pass() -> None:
    fills = [Fill(row, 0, [0] * length) for row, length in enumerate([4, 5, 100, 110])]
    (together,) = passes(fills)
    assert [[piece.row for piece in side] for side in together] == [[0, 1], [2, 3]]
