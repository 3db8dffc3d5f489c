"""The columns of a step: the inputs of losses for each token, apart from its new log-probability."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentrl.types.sample import TrainingSample

Columns = dict[str, list[NDArray[Any]]]
"""By name (a field of `losses.TokenBatch`): one array per sample, with the sample's length."""


def token_columns(
    samples: Sequence[TrainingSample],
    weights: list[NDArray[np.float32]],
    old: list[NDArray[np.float32]] | None = None,
    further: Mapping[str, list[NDArray[np.float32]]] | None = None,
) -> Columns:
    """The columns of all samples of an optimiser step. Episodes, groups and turns are numbered from 0 within the step.

    Args:
        old: log-probabilities under the old policy; None omits the column.
        further: columns that the loss needs.
    """
    columns: Columns = {
        "behaviour_logprob": [sample.behaviour_logprob for sample in samples],
        "advantage": [sample.advantage for sample in samples],
        "reward": [np.full(len(sample.token_ids), sample.reward, np.float32) for sample in samples],
        "weight": list(weights),
        **owners(samples),
    }
    if any(sample.clip_scale is not None for sample in samples):
        columns["clip_scale"] = [
            np.ones(len(sample.token_ids), np.float32) if sample.clip_scale is None else sample.clip_scale
            for sample in samples
        ]
    if any(sample.span_ends for sample in samples):
        columns["span"] = _spans(samples)
    if old is not None:
        columns["old_logprob"] = list(old)
    return {**columns, **{name: list(values) for name, values in (further or {}).items()}}


def owners(samples: Sequence[TrainingSample]) -> Columns:
    """`episode`, `group` and `turn` of each token, numbered from 0."""
    episodes, groups = (
        _numbers([sample.episode_id for sample in samples]),
        _numbers([sample.group_id for sample in samples]),
    )
    return {
        "episode": [np.full(len(sample.token_ids), episodes[sample.episode_id]) for sample in samples],
        "group": [np.full(len(sample.token_ids), groups[sample.group_id]) for sample in samples],
        "turn": _turns(samples),
    }


def _numbers(ids: Sequence[str]) -> dict[str, int]:
    return {id: number for number, id in enumerate(dict.fromkeys(ids))}


def _turns(samples: Sequence[TrainingSample]) -> list[NDArray[np.int64]]:
    """The number of each token's turn. A sample without turn spans counts as one turn."""
    out, number = [], -1
    for sample in samples:
        number += 1
        turns = np.full(len(sample.token_ids), number, np.int64)
        for _, start, end in sample.turn_spans:
            number += 1
            turns[start:end] = number
        out.append(turns)
    return out


def _spans(samples: Sequence[TrainingSample]) -> list[NDArray[np.int64]]:
    """The number of each token's span. It begins after the one before; what follows the last one of a turn, and a turn
    without any, counts as one."""
    out, number = [], 0
    for sample in samples:
        size = len(sample.token_ids)
        begins = np.zeros(size + 1, np.int64)
        begins[[place for _, *turn in sample.turn_spans for place in turn] + sample.span_ends] = 1
        out.append(number + np.cumsum(begins[:size]))
        number = int(out[-1][-1]) + 1
    return out
