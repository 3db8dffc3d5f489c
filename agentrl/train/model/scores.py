"""Log-probabilities and entropies from logits, and their gradients.

`log_softmax`, `exp` and their backward passes write float32 tensors as large as the logits, six in all. Here some rows
at a time go through, so that what lies between stays in the processor's cache; kept for the gradient are the logits as
they came.
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

AT_A_TIME = 2**19
"""The number of logits that go through at a time on a CPU. A GPU takes all of them: many small kernels cost more."""


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
        logprob, total, found = torch.zeros((3, len(logits)), device=logits.device)
        for rows in _parts(logits):
            scaled = logits[rows].float() / temperature
            highest = scaled.amax(-1)
            chosen = scaled.gather(1, targets[rows, None])[:, 0] - highest
            exponents = scaled.sub_(highest[:, None]).mul_(LOG2_E)
            masses = exponents.exp2()  # nearly three times faster than exp
            mass = masses.sum(-1)
            logprob[rows], total[rows] = chosen - mass.log(), highest + mass.log()
            if entropy != "none":
                found[rows] = mass.log() - masses.mul_(exponents).sum(-1) / mass / LOG2_E
        ctx.save_for_backward(logits, targets, total, found)
        ctx.temperature, ctx.entropy = temperature, entropy
        if entropy != "gradient":
            ctx.mark_non_differentiable(found)
        return logprob, found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, logprob_grad: Tensor, entropy_grad: Tensor) -> tuple[Tensor, None, None, None]:
        logits, targets, total, found = ctx.saved_tensors
        grad = torch.empty_like(logits)
        logprob_grad, entropy_grad = logprob_grad / ctx.temperature, entropy_grad / ctx.temperature
        for rows in _parts(logits):
            every = (logits[rows].float() / ctx.temperature).sub_(total[rows, None])
            own = logprob_grad[rows, None]
            slope = -own
            if ctx.entropy == "gradient":
                slope = slope - entropy_grad[rows, None] * (every + found[rows, None])
            part = every.mul_(LOG2_E).exp2_().mul_(slope)
            grad[rows] = part.scatter_add_(1, targets[rows, None], own)
        return grad, None, None, None


def _parts(logits: Tensor) -> Iterator[slice]:
    count, size = logits.shape
    step = max(1, AT_A_TIME // size) if logits.is_cpu else max(1, count)
    return (slice(first, first + step) for first in range(0, count, step))
