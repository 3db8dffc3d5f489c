"""Methods of conversations: with a list at their end, or imagined."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise
from typing import Any

import msgspec

from agentrl.config.recipe import Recipe
from agentrl.estimators.table import CreditTable
from agentrl.rollouts.builder import build
from tests.methods.programs import played
from tests.methods.proofs import Method, Run

# --- Rank-GRPO --------------------------------------------------------------------------------------------------------

FILMS = {"instruction": "I liked bal. Now a calm one?", "liked": "bal", "wanted": ["ban", "bar"]}


def of_tokens(run: Run) -> Sequence[Any]:
    """By episode the credit of its tokens."""
    found = [run.reader.credit(each.id) for each in run.played]
    return [credit.token_advantages for credit in found if credit is not None]


def ranked(recipe: Recipe) -> list[Any]:
    """By list of a group of three: what its lines earn, and the credit of its tokens, equal neighbours once."""
    said = ("ban\nbal\nbar\n", "bal\nbar\nbar", "kan\nkan\nban\nbar")
    lists = [msgspec.structs.replace(played(recipe, each, task=FILMS), id=each) for each in said]
    table = CreditTable.from_episodes(lists)
    credit = build(recipe).credit(table)
    token = credit.turn[table.token_turn] if credit.token is None else credit.token
    by_list = [token[start:end].round(3).tolist() for start, end in pairwise(table.token_offsets)]
    earned = [[round(span.value, 3) for span in each.turns[0].spans] for each in lists]
    return [earned, [[value for value, _ in groupby(of)] for of in by_list]]


METHODS: Sequence[Method] = [
    # DCG of a hit: 1, 1 / log2(3), 1/2. The first ranks' returns are 1.5, .631 and .5: mean .877, deviation .5435. The
    # second ones' are .5, .631 and .5, the third ones' .5, 0 and .5. A fourth line, and the end of a list, get nothing.
    Method(
        "rank-grpo",
        of_tokens,
        ranked,
        [
            [[1.0, 0.0, 0.5], [0.0, 0.631, 0.0], [0.0, 0.0, 0.5, 0.0]],
            [[1.146, -0.577, 0.577, 0.0], [-0.453, 1.153, -1.154, 0.0], [-0.693, -0.577, 0.577, 0.0]],
        ],
        sized=("warm_start.steps=150", "warm_start.episodes=512"),
        warmed=None,
    ),
]
