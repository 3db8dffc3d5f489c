"""Losses by name, on flat tensors of one element per trained token; and how tokens are weighted.

A loss knows nothing of rows in memory: it takes a `TokenBatch` and returns a number per token. The trainer sums
them with the weights of `token_weights`, so that neither packing nor accumulation can change the result.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentrl.errors import TrainError
from agentrl.train.row import Row
from agentrl.train.settings import Aggregation, TrainSettings

MAX_LOG_RATIO = 20.0
"""Log-ratios are clamped to +- this, so that one broken token cannot overflow the loss (verl does the same)."""


@dataclass(frozen=True)
class TokenBatch:
    """Trained tokens of whole rows, row after row; n in all. Logarithms are natural.

    Attributes:
        logprob: float32 [n], under the policy that is trained; carries the gradient.
        old_logprob: float32 [n], under the policy before the iteration's first step.
        behaviour_logprob: float32 [n], as the engine reported them when it sampled.
        advantage: float32 [n].
        row: int64 [n], equal for tokens of the same row; for losses that average over a sequence.
    """

    logprob: Tensor
    old_logprob: Tensor
    behaviour_logprob: Tensor
    advantage: Tensor
    row: Tensor

    @property
    def log_ratio(self) -> Tensor:
        """log(policy / old policy) [n], clamped."""
        return (self.logprob - self.old_logprob).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


Loss = Callable[[TokenBatch, TrainSettings], tuple[Tensor, Tensor]]
"""Takes tokens and settings; returns each token's loss [n], and where clipping took its gradient [n, bool]."""

LOSSES: dict[str, Loss] = {}


def loss(name: str) -> Callable[[Loss], Loss]:
    """Registers a loss: `@loss("mine")`."""

    def register(function: Loss) -> Loss:
        LOSSES[name] = function
        return function

    return register


def loss_named(name: str) -> Loss:
    """The loss that is registered as `name`.

    Raises:
        TrainError: there is none.
    """
    if name not in LOSSES:
        near = difflib.get_close_matches(name, LOSSES, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise TrainError(
            f"no loss {name!r}", place="train.loss", remedy=f"{hint}there are: {', '.join(sorted(LOSSES))}"
        )
    return LOSSES[name]


@loss("ppo_clip")
def ppo_clip(batch: TokenBatch, settings: TrainSettings) -> tuple[Tensor, Tensor]:
    """max(-r A, -clip(r, 1 - clip_low, 1 + clip_high) A), r = policy / old policy (Schulman et al., 2017).

    Bounds that differ are DAPO's clip-higher (Yu et al., 2025). With `dual_clip` c, a token of negative advantage
    costs at most -c A (Ye et al., 2020).
    """
    ratio = batch.log_ratio.exp()
    plain = -ratio * batch.advantage
    clipped = -ratio.clamp(1 - settings.clip_low, 1 + settings.clip_high) * batch.advantage
    worst = torch.maximum(plain, clipped)
    is_clipped = clipped > plain
    if settings.dual_clip is not None:
        bound = -settings.dual_clip * batch.advantage
        beyond = (batch.advantage < 0) & (worst > bound)
        worst, is_clipped = torch.where(beyond, bound, worst), is_clipped | beyond
    return worst, is_clipped


@loss("cross_entropy")
def cross_entropy(batch: TokenBatch, settings: TrainSettings) -> tuple[Tensor, Tensor]:
    """-log-probability, scaled by the advantage: 1 in supervised rows. With other advantages it is REINFORCE."""
    return -batch.logprob * batch.advantage, torch.zeros_like(batch.logprob, dtype=torch.bool)


def token_weights(
    rows: Sequence[Row], aggregation: Aggregation, token_norm: float | None = None
) -> list[NDArray[np.float32]]:
    """The weight of every token of every row in the loss of one optimiser step; 0 where the row does not train.

    A sequence is an episode, whatever the number of its rows. With N trained tokens in all, S episodes that train
    any, and n in the token's episode, the weight is 1 / N (`token_mean`), 1 / (S n) (`seq_mean_token_mean`) or
    1 / token_norm (`seq_mean_token_sum_norm`, as verl computes it: not divided by S).

    Args:
        rows: ALL rows of the step, so that accumulation over packs leaves the result alone.
    """
    trained: dict[str, int] = {}
    for row in rows:
        trained[row.episode_id] = trained.get(row.episode_id, 0) + int(row.loss_mask.sum())
    total = sum(trained.values())
    sequences = sum(count > 0 for count in trained.values())

    def weight(episode_id: str) -> float:
        match aggregation:
            case "token_mean":
                return 1 / max(total, 1)
            case "seq_mean_token_mean":
                return 1 / max(sequences * trained[episode_id], 1)
            case "seq_mean_token_sum_norm":
                assert token_norm is not None
                return 1 / token_norm

    return [row.loss_mask.astype(np.float32) * np.float32(weight(row.episode_id)) for row in rows]
