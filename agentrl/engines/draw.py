"""Drawing tokens: a batch of logits to a token and its log-probability each, reproducible row by row."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def uniforms(seeds: NDArray[np.uint64], counters: NDArray[np.uint64]) -> NDArray[np.float64]:
    """One number in [0, 1) for each pair of seed and counter, with 53 random bits.

    Counter-based (splitmix64: Steele, Lea, Flood 2014), so that a row's draws depend on nothing else in the batch.
    """
    return (_mix(_mix(seeds) + counters * GOLDEN) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    z = z + GOLDEN
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def draw(logits: Tensor, temperature: Tensor, top_p: Tensor | None, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Samples by inverting the distribution function.

    Args:
        logits: [rows, vocab].
        temperature: float32 [rows]; 0 takes the most likely token, with its log-probability under temperature 1.
        top_p: float32 [rows], or None if no row has less than 1. Greedy rows ignore it.
        uniform: float64 [rows], in [0, 1).

    Returns:
        Tokens, int64 [rows], and the log-probabilities (float32) of the distributions that they were drawn from.
    """
    greedy = temperature == 0
    logprobs = torch.log_softmax(logits.float() / torch.where(greedy, 1.0, temperature)[:, None], -1)
    if top_p is not None:
        logprobs = _nucleus(logprobs, torch.where(greedy, 1.0, top_p))
    cumulative = logprobs.exp().cumsum(-1, dtype=torch.float64)
    total = cumulative[:, -1:]
    target = torch.minimum(uniform[:, None] * total, torch.nextafter(total, torch.zeros_like(total)))
    # The first token whose cumulative mass exceeds the target: never one of mass zero.
    tokens = torch.searchsorted(cumulative, target, right=True)[:, 0].clamp_(max=logits.shape[-1] - 1)
    tokens = torch.where(greedy, logprobs.argmax(-1), tokens)
    return tokens, logprobs.gather(1, tokens[:, None])[:, 0]


def _nucleus(logprobs: Tensor, top_p: Tensor) -> Tensor:
    """Keeps, of each row, the smallest set of most likely tokens that holds mass `top_p`, and renormalises."""
    ordered, order = logprobs.sort(-1, descending=True)
    mass = ordered.exp()
    dropped = (mass.cumsum(-1) - mass >= top_p[:, None]) & (top_p[:, None] < 1)
    dropped[:, 0] = False
    kept = logprobs.masked_fill(dropped.gather(1, order.argsort(-1)), -torch.inf)
    return kept.log_softmax(-1)
