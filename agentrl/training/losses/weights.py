"""Aggregation as one weight per token, so that packing, branches and accumulation cannot change it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agentrl.config.train import Aggregation
from agentrl.training.model.columns import owners
from agentrl.types.sample import TrainingSample

Counts = NDArray[np.float64]


@dataclass(frozen=True)
class Trained:
    """The N trained tokens of a step.

    Attributes:
        episode, turn, group: int64 [N], index of the token's episode, turn and group.
    """

    episode: NDArray[np.int64]
    turn: NDArray[np.int64]
    group: NDArray[np.int64]

    def turns(self) -> Counts:
        """Number of trained turns of the token's episode [N]."""
        first = np.unique(self.turn, return_index=True)[1]
        return np.bincount(self.episode[first])[self.episode].astype(np.float64)


def _size(index: NDArray[np.int64]) -> Counts:
    """Number of tokens with the same index [N]."""
    return np.bincount(index)[index].astype(np.float64)


def _many(index: NDArray[np.int64]) -> int:
    """Number of different indices."""
    return len(np.unique(index))


_DENOMINATORS: dict[Aggregation, Callable[[Trained], Counts | int]] = {
    "token_mean": lambda trained: len(trained.episode),
    "seq_mean_token_mean": lambda trained: _many(trained.episode) * _size(trained.episode),
    "seq_mean_turn_mean": lambda trained: _many(trained.episode) * trained.turns() * _size(trained.turn),
    "group_mean": lambda trained: _many(trained.group) * _size(trained.group),
    "seq_mean_token_sum": lambda trained: _many(trained.episode),
}
"""Divisor of the loss of each token."""


def token_weights(
    samples: Sequence[TrainingSample], aggregation: Aggregation, token_norm: float | None = None
) -> list[NDArray[np.float32]]:
    """The weight of each token of each sample in the loss of one optimiser step; 0 for tokens that are not trained.

    A sequence is an episode, whatever the number of its samples. Only trained tokens count: N in all, S episodes and G
    groups with trained tokens, n tokens in the token's episode, T trained turns in that episode, m tokens in the
    token's turn and k in its group. The weight is 1 / N (`token_mean`), 1 / (S n) (`seq_mean_token_mean`), 1 / (S T m)
    (`seq_mean_turn_mean`), 1 / (G k) (`group_mean`, ScaleRL's mean over prompts), 1 / S (`seq_mean_token_sum`) or 1 /
    token_norm (`seq_mean_token_sum_norm`, as verl computes it: not divided by S, where Dr. GRPO's own code takes the
    mean over episodes).

    Args:
        samples: ALL samples of the step, so that accumulation over packs does not change the result.
    """
    columns = owners(samples)
    mask = np.concatenate([sample.loss_mask for sample in samples])
    weights = np.zeros(len(mask), np.float32)
    if aggregation == "seq_mean_token_sum_norm":
        assert token_norm is not None
        weights[mask] = 1 / token_norm
    elif mask.any():
        trained = Trained(*(np.concatenate(columns[name])[mask] for name in ("episode", "turn", "group")))
        weights[mask] = 1 / np.asarray(_DENOMINATORS[aggregation](trained), np.float64)
    return np.split(weights, np.cumsum([len(sample.token_ids) for sample in samples])[:-1])
