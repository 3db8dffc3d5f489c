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


_WHOLE: dict[Aggregation, Callable[[Trained], int]] = {
    "token_mean": lambda trained: len(trained.episode),
    "seq_mean_token_mean": lambda trained: _many(trained.episode),
    "seq_mean_turn_mean": lambda trained: _many(trained.episode),
    "group_mean": lambda trained: _many(trained.group),
    "seq_mean_token_sum": lambda trained: _many(trained.episode),
}
"""Divisor of all losses of a step: tokens, episodes or groups."""
_WITHIN: dict[Aggregation, Callable[[Trained], Counts | int]] = {
    "token_mean": lambda trained: 1,
    "seq_mean_token_mean": lambda trained: _size(trained.episode),
    "seq_mean_turn_mean": lambda trained: trained.turns() * _size(trained.turn),
    "group_mean": lambda trained: _size(trained.group),
    "seq_mean_token_sum": lambda trained: 1,
}
"""Further divisor of the loss of each token, which its own group tells."""


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
    return _weights(samples, aggregation, token_norm, whole=True)


def weights_within(
    samples: Sequence[TrainingSample], aggregation: Aggregation, token_norm: float | None = None
) -> list[NDArray[np.float32]]:
    """The weights of some groups of a step, before its other groups are known: `token_weights` times `step_divisor`."""
    return _weights(samples, aggregation, token_norm, whole=False)


def step_divisor(samples: Sequence[TrainingSample], aggregation: Aggregation) -> int:
    """The factor of `token_weights` that all samples of a step decide: 1 / N, 1 / S or 1 / G has it as its divisor."""
    trained = _trained(samples)
    return 1 if trained is None or aggregation == "seq_mean_token_sum_norm" else _WHOLE[aggregation](trained)


def _weights(
    samples: Sequence[TrainingSample], aggregation: Aggregation, token_norm: float | None, *, whole: bool
) -> list[NDArray[np.float32]]:
    mask = np.concatenate([sample.loss_mask for sample in samples])
    weights = np.zeros(len(mask), np.float32)
    if aggregation == "seq_mean_token_sum_norm":
        assert token_norm is not None
        weights[mask] = 1 / token_norm
    elif (trained := _trained(samples)) is not None:
        divisor = (_WHOLE[aggregation](trained) if whole else 1) * _WITHIN[aggregation](trained)
        weights[mask] = 1 / np.asarray(divisor, np.float64)
    return np.split(weights, np.cumsum([len(sample.token_ids) for sample in samples])[:-1])


def _trained(samples: Sequence[TrainingSample]) -> Trained | None:
    """The trained tokens of samples; None: there are none."""
    mask = np.concatenate([sample.loss_mask for sample in samples])
    if not mask.any():
        return None
    columns = owners(samples)
    return Trained(*(np.concatenate(columns[name])[mask] for name in ("episode", "turn", "group")))
