"""Log-probabilities and entropies from logits, and their gradients.

Autograd would store the log-probabilities of the whole vocabulary in float32, and its backward passes write several
tensors of that size. Here only the logits are stored in their dtype, and their log-probabilities are recomputed for the
gradient, some rows at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

Entropy = Literal["none", "value", "gradient"]

LOG2_E = 1 / math.log(2)

IN_CACHE, AT_A_TIME = 2**19, 2**24
"""The number of logits that are computed at a time, on one CPU thread and elsewhere: few enough for the processor's
cache, or enough to make up for the threads' waiting for each other after every operation."""


def token_scores(logits: Tensor, targets: Tensor, *, temperature: float, entropy: Entropy) -> tuple[Tensor, Tensor]:
    """Of n predictions: the targets' log-probabilities, and the entropies in nats, float32 [n].

    Args:
        logits: [n, V], of any precision.
        targets: int64 [n].
        temperature: above 0.
        entropy: none: zeros; value: without a gradient.
    """
    logprob, found = _Scores.apply(logits, targets, temperature, entropy)  # type: ignore[no-untyped-call]
    return logprob, found


class _Scores(torch.autograd.Function):
    """With p = softmax(z / T) and its entropy H: d log p_t / dz_j = ([j = t] - p_j) / T and
    dH / dz_j = -p_j (log p_j + H) / T."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, targets: Tensor, temperature: float, entropy: Entropy
    ) -> tuple[Tensor, Tensor]:
        logprob, found = (torch.zeros(len(logits), dtype=torch.float32, device=logits.device) for _ in range(2))
        for rows in _parts(logits):
            every = _log_probabilities(logits[rows], temperature)
            logprob[rows] = every.gather(1, targets[rows, None])[:, 0]
            if entropy != "none":
                found[rows] = -_exp(every).mul_(every).sum(-1)
        ctx.save_for_backward(logits, targets, found)
        ctx.temperature, ctx.entropy = temperature, entropy
        if entropy != "gradient":
            ctx.mark_non_differentiable(found)
        return logprob, found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, logprob_grad: Tensor, entropy_grad: Tensor) -> tuple[Tensor, None, None, None]:
        logits, targets, found = ctx.saved_tensors
        grad = torch.empty_like(logits)
        logprob_grad, entropy_grad = logprob_grad / ctx.temperature, entropy_grad / ctx.temperature
        for rows in _parts(logits):
            every = _log_probabilities(logits[rows], ctx.temperature)
            own = logprob_grad[rows, None]
            part = _exp(every)
            if ctx.entropy == "gradient":
                part.mul_(every.add_(found[rows, None]).mul_(-entropy_grad[rows, None]).sub_(own))
            else:
                part.mul_(-own)
            grad[rows] = part.scatter_add_(1, targets[rows, None], own)
        return grad, None, None, None


def _log_probabilities(logits: Tensor, temperature: float) -> Tensor:
    logits = logits.float()
    return torch.log_softmax(logits if temperature == 1.0 else logits / temperature, -1)


def _exp(values: Tensor) -> Tensor:
    return (values * LOG2_E).exp2_()  # on a CPU nearly three times faster than exp


def _parts(logits: Tensor) -> Iterator[slice]:
    count, size = logits.shape
    at_a_time = IN_CACHE if logits.is_cpu and torch.get_num_threads() == 1 else AT_A_TIME
    step = max(1, at_a_time // size)
    return (slice(first, first + step) for first in range(0, count, step))
