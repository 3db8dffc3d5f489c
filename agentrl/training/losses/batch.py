"""The input of a loss: the trained tokens of a step as flat tensors."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from agentrl.config.train import Anchor
from agentrl.training.losses.loss import COLUMN_OF, Need
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
        ref_logprob, teacher_logprob, ema_logprob: float32 [n], under the reference policy, the teacher and the moving
            average of the policy; None unless the loss or KL needs them (`Loss.needs`).
        entropy: float32 [n], of the trained policy where it chose the token (nats), with its gradient: a weight made of
            it is detached first. None unless the loss needs it.
        clip_scale: float32 [n], factor of the clip range, from the credit; None: 1 for all.
        span: int64 [n], index of the token's span within its turn (`agentrl.rewards.Span`); None: no turn has any.
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
    teacher_logprob: Tensor | None = None
    ema_logprob: Tensor | None = None
    entropy: Tensor | None = None
    clip_scale: Tensor | None = None
    span: Tensor | None = None

    @property
    def log_ratio(self) -> Tensor:
        """log(policy / old policy) [n], clamped."""
        return (self.logprob - self.old_logprob).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)

    @property
    def ref_log_ratio(self) -> Tensor:
        """log(policy / reference policy) [n].

        Raises:
            TrainError: the loss did not say that it needs the reference.
        """
        return self.log_ratio_to("reference")

    def log_ratio_to(self, anchor: Anchor) -> Tensor:
        """log(policy / other policy) [n].

        Raises:
            TrainError: the loss did not say that it needs the other policy.
        """
        return self.logprob - self.needed(anchor)

    def needed(self, need: Need) -> Tensor:
        """The column [n] of something that the loss needs.

        Raises:
            TrainError: the loss did not say so.
        """
        column: Tensor | None = getattr(self, COLUMN_OF[need])
        if column is None:
            raise TrainError(
                f"the loss reads {COLUMN_OF[need]}, and did not say so",
                place="train.loss",
                remedy=f'declare it: Loss("name", function, needs=["{need}"]) (from agentrl.training.losses.loss)',
            )
        return column

    def scaled(self, bound: float) -> float | Tensor:
        """A bound of the clip range, times the factor that the credit gives: a number, or one for each token [n]."""
        return bound if self.clip_scale is None else bound * self.clip_scale

    def sequence(self, what: str) -> Tensor:
        """The index [n] of the given kind: `episode`, `turn` or `span`. A turn without spans is one."""
        if what == "span" and self.span is not None:
            return self.span
        return self.episode if what == "episode" else self.turn


def sum_by(values: Tensor, index: Tensor) -> Tensor:
    """Sums of `values` [n] by `index` [largest index + 1]: entry k is the sum over positions with index k."""
    return values.new_zeros(int(index.max()) + 1).index_add(0, index, values)


def mean_by(values: Tensor, index: Tensor) -> Tensor:
    """Means of `values` [n] by `index` [largest index + 1]; 0 for an index that does not occur."""
    return sum_by(values, index) / sum_by(torch.ones_like(values), index).clamp(min=1)
