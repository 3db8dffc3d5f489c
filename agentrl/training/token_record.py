"""Collects what an update computes for each token of a few groups (`train.record_tokens`)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from agentrl.store.tokens import TokenRecord, TurnTokens
from agentrl.training.losses.batch import TokenBatch
from agentrl.training.model.packing import Floats, Pack
from agentrl.training.parallel.ranks import Ranks
from agentrl.types.sample import TrainingSample

_DIGITS = 6  # decimals that are kept


class StepColumns:
    """Numbers of the trained tokens of a step's samples, filled pack by pack."""

    def __init__(self, samples: Sequence[TrainingSample]) -> None:
        names = ("ratio", "entropy", "clipped")
        self.arrays = {name: [np.zeros(len(each.token_ids), np.float32) for each in samples] for name in names}

    def add(self, packed: Pack, batch: TokenBatch, clipped: Tensor, entropy: Tensor) -> None:
        """Takes the numbers of a pack."""
        with torch.no_grad():
            columns = {"ratio": batch.log_ratio.exp(), "entropy": entropy, "clipped": clipped}
        for name, column in columns.items():
            packed.scatter(column.detach().float().cpu().numpy(), self.arrays[name])


class TokenRecorder:
    """Keeps the numbers of the first groups of an update; those with an advantage come first. Off for 0 groups."""

    def __init__(self, samples: Sequence[TrainingSample], groups: int) -> None:
        self._samples = samples
        telling = {each.group_id for each in samples if each.advantage.any()}
        ids = dict.fromkeys(each.group_id for each in samples)
        self._kept = set(sorted(ids, key=lambda id: id not in telling)[:groups])
        self._found: dict[int, dict[str, Floats]] = {}

    def columns(self, step: Sequence[int]) -> StepColumns | None:
        """Makes the columns of a step on samples with these indices; None if none of them is kept."""
        chosen = [self._samples[index] for index in step]
        return StepColumns(chosen) if any(each.group_id in self._kept for each in chosen) else None

    def keep(self, step: Sequence[int], logprobs: Sequence[Floats], columns: StepColumns | None, ranks: Ranks) -> None:
        """Keeps a step's numbers, of all ranks. A later step on the same sample replaces them."""
        if columns is None:
            return
        for arrays in columns.arrays.values():
            ranks.all_reduce(arrays)
        for place, index in enumerate(step):
            if self._samples[index].group_id in self._kept:
                numbers = {name: arrays[place] for name, arrays in columns.arrays.items()}
                self._found[index] = {"logprob": logprobs[place], **numbers}

    def records(self) -> list[TokenRecord]:
        """The records of what was kept."""
        return [_record(self._samples[index], self._found[index]) for index in sorted(self._found)]


def _record(sample: TrainingSample, found: dict[str, Floats]) -> TokenRecord:
    columns = {"advantage": sample.advantage, **found}
    turns = [
        TurnTokens(
            turn=turn,
            clipped=(columns["clipped"][start:end] > 0).tolist(),
            **{name: _rounded(columns[name][start:end]) for name in ("advantage", "logprob", "ratio", "entropy")},
        )
        for turn, start, end in sample.turn_spans
    ]
    return TokenRecord(episode_id=sample.episode_id, group_id=sample.group_id, branch_id=sample.branch_id, turns=turns)


def _rounded(values: Floats) -> list[float]:
    rounded: list[float] = np.round(values.astype(np.float64), _DIGITS).tolist()
    return rounded
