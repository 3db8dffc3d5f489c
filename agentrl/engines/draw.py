"""Drawing tokens: a batch of logits to a token and its log-probability each, reproducible row by row."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

PIECE = 256
"""Tokens of a piece of the vocabulary, in which a draw is looked for last."""

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


def draw(
    logits: Tensor,
    uniform: Tensor,
    *,
    temperature: Tensor | None = None,
    top_p: Tensor | None = None,
    greedy: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Samples by inverting the distribution function. Nothing here waits for a device.

    Over a large vocabulary every pass counts: what no row asks for is None, and left out.

    Args:
        logits: [rows, vocab].
        uniform: float64 [rows], in [0, 1).
        temperature: float32 [rows], above 0. None: 1 for all rows.
        top_p: float32 [rows], in (0, 1]. None: 1 for all rows.
        greedy: bool [rows]; these rows take the most likely token. None: no row.

    Returns:
        Tokens, int64 [rows], and the log-probabilities (float32) of the distributions that they were drawn from.
    """
    logits = logits.float()
    logprobs = torch.log_softmax(logits if temperature is None else logits / temperature[:, None], -1)
    if top_p is not None:
        logprobs = _nucleus(logprobs, top_p)
    tokens = _invert(logprobs.exp(), uniform)
    if greedy is not None:
        tokens = torch.where(greedy, logprobs.argmax(-1), tokens)
    return tokens, logprobs.gather(1, tokens[:, None])[:, 0]


def _invert(mass: Tensor, uniform: Tensor) -> Tensor:
    """The first token of each row whose cumulative mass exceeds the row's share `uniform` of all; never one of mass 0.

    In two steps, the piece of the vocabulary and the token in it, so that float64 sums run over few numbers.
    """
    rows, vocabulary = mass.shape
    if short := -vocabulary % PIECE:
        mass = functional.pad(mass, (0, short))
    pieces = mass.view(rows, -1, PIECE)
    ends = pieces.sum(-1, dtype=torch.float64).cumsum(-1)
    target = _below(uniform[:, None] * ends[:, -1:], ends)
    # Where masses are not finite a search ends nowhere; the log-probability then says so.
    piece = torch.searchsorted(ends, target, right=True).clamp_(max=pieces.shape[1] - 1)
    starts = functional.pad(ends, (1, 0)).gather(1, piece)
    cumulative = pieces.gather(1, piece[..., None].expand(-1, -1, PIECE))[:, 0].cumsum(-1, dtype=torch.float64)
    inside = torch.searchsorted(cumulative, _below(target - starts, cumulative), right=True)
    return (piece * PIECE + inside)[:, 0].clamp_(max=vocabulary - 1)


def _below(target: Tensor, cumulative: Tensor) -> Tensor:
    """`target` [rows, 1], less than the last of `cumulative` [rows, n], which rounding might make it reach."""
    total = cumulative[:, -1:]
    return torch.minimum(target, torch.nextafter(total, torch.zeros_like(total)))


def _nucleus(logprobs: Tensor, top_p: Tensor) -> Tensor:
    """Keeps, of each row, the smallest set of most likely tokens that holds mass `top_p`, and renormalises."""
    ordered, order = logprobs.sort(-1, descending=True)
    mass = ordered.exp()
    dropped = (mass.cumsum(-1) - mass >= top_p[:, None]) & (top_p[:, None] < 1)
    dropped[:, 0].fill_(False)
    kept = logprobs.masked_fill(dropped.gather(1, order.argsort(-1)), -torch.inf)
    return kept.log_softmax(-1)
