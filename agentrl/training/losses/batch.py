"""The input of a loss: the trained tokens of a step as flat tensors."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from agentrl.types.errors import TrainError

MAX_LOG_RATIO = 20.0
"""Log-ratios are clamped to +- this value, so that one bad token cannot overflow the loss (as in verl)."""


@dataclass(frozen=True)
class TokenBatch:
    """The n trained tokens of some samples. Logarithms are natural.

    Attributes:
        logprob: float32 [n], under the trained policy; carries the gradient.
        old_logprob: float32 [n], under the policy before the iteration's first step.
        behaviour_logprob: float32 [n], as reported by the engine at sampling.
        advantage: float32 [n].
        reward: float32 [n], reward of the token's episode.
        weight: float32 [n], weight of the token's loss in the sum (`token_weights`).
        episode, turn, group: int64 [n], index of the token's episode, turn and group. Turns of different episodes have
            different indices.
        ref_logprob: float32 [n], under the reference policy; None without one.
    """

    logprob: Tensor
    old_logprob: Tensor
    behaviour_logprob: Tensor
    advantage: Tensor
    reward: Tensor
    weight: Tensor
    episode: Tensor
    turn: Tensor
    group: Tensor
    ref_logprob: Tensor | None = None

    @property
    def log_ratio(self) -> Tensor:
        """log(policy / old policy) [n], clamped."""
        return (self.logprob - self.old_logprob).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)

    @property
    def ref_log_ratio(self) -> Tensor:
        """log(policy / reference policy) [n].

        Raises:
            TrainError: the trainer has no reference policy.
        """
        if self.ref_logprob is None:
            raise TrainError(
                "the loss reads a reference policy, and the trainer has none",
                place="train.loss",
                remedy='declare it: Loss("name", function, reference=True) (from agentrl.training.losses.loss)',
            )
        return self.logprob - self.ref_logprob

    def sequence(self, what: str) -> Tensor:
        """The index [n] of the given kind: `episode` or `turn`."""
        return self.episode if what == "episode" else self.turn


def sum_by(values: Tensor, index: Tensor) -> Tensor:
    """Sums of `values` [n] by `index` [largest index + 1]: entry k is the sum over positions with index k."""
    return values.new_zeros(int(index.max()) + 1).index_add(0, index, values)


def mean_by(values: Tensor, index: Tensor) -> Tensor:
    """Means of `values` [n] by `index` [largest index + 1]; 0 for an index that does not occur."""
    return sum_by(values, index) / sum_by(torch.ones_like(values), index).clamp(min=1)
