"""The columns of a step: what losses read about each token beside its new log-probability."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentrl.types.sample import Row

Columns = dict[str, list[NDArray[Any]]]
"""By name (a field of `losses.TokenBatch`): an array as long as the row, for every row."""


def token_columns(
    rows: Sequence[Row],
    weights: list[NDArray[np.float32]],
    old: list[NDArray[np.float32]] | None = None,
    ref: list[NDArray[np.float32]] | None = None,
) -> Columns:
    """The columns of all rows of an optimiser step. Episodes, groups and turns are numbered from 0 within it.

    Args:
        old, ref: log-probabilities of the old and of the reference policy; without them there is no such column.
    """
    columns: Columns = {
        "behaviour_logprob": [row.logprobs for row in rows],
        "advantage": [row.advantages for row in rows],
        "reward": [np.full(len(row.token_ids), row.reward, np.float32) for row in rows],
        "weight": list(weights),
        **owners(rows),
    }
    if old is not None:
        columns["old_logprob"] = list(old)
    if ref is not None:
        columns["ref_logprob"] = list(ref)
    return columns


def owners(rows: Sequence[Row]) -> Columns:
    """`episode`, `group` and `turn` of each token, numbered from 0."""
    episodes, groups = _numbers([row.episode_id for row in rows]), _numbers([row.group_id for row in rows])
    return {
        "episode": [np.full(len(row.token_ids), episodes[row.episode_id]) for row in rows],
        "group": [np.full(len(row.token_ids), groups[row.group_id]) for row in rows],
        "turn": _turns(rows),
    }


def _numbers(ids: Sequence[str]) -> dict[str, int]:
    return {id: number for number, id in enumerate(dict.fromkeys(ids))}


def _turns(rows: Sequence[Row]) -> list[NDArray[np.int64]]:
    """The number of each token's turn; all of a row that names no turns counts as one."""
    out, number = [], -1
    for row in rows:
        number += 1
        turns = np.full(len(row.token_ids), number, np.int64)
        for _, start, end in row.turn_spans:
            number += 1
            turns[start:end] = number
        out.append(turns)
    return out
