"""Gumbel-max sampling: from a batch of logits a token and its log-probability per row, reproducible row by row.

A token is drawn in two steps: first a piece of the vocabulary, by its probability mass, then a token of that piece.
Each step takes the largest score, which is log-mass plus Gumbel noise (Gumbel 1954; Maddison, Tarlow, Minka, "A*
Sampling", 2014). A token's probability is that of its piece times its share of the piece, so the draw is exact. A row
needs noise for each piece and for each token of one piece, not for the whole vocabulary.

Batch composition changes the rounding of logits. This changes a draw only if two scores are as close as the rounding.
(Inverse transform sampling would be affected at every boundary between two tokens.) The draw returns how close they
are.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

LOG2_E = 1 / math.log(2)
GOLDEN = 0x9E3779B97F4A7C15
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


class Drawn(NamedTuple):
    """The drawn token of each row.

    Attributes:
        tokens: int64 [rows].
        logprobs: float32 [rows], under the distribution that the token was drawn from.
        margins: float32 [rows], >= 0. The token stays the same if every logit changes by less than margin / 2 *
            max(1, |highest logit|), unless a token enters or leaves the nucleus of `top_p`.
    """

    tokens: Tensor
    logprobs: Tensor
    margins: Tensor


def row_keys(seeds: NDArray[np.uint64], counters: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Returns the noise key of each pair of seed and counter: `keys` of `draw`.

    Counter-based (splitmix64: Steele, Lea, Flood 2014), so a row's draws do not depend on the rest of the batch.
    """
    return _mix(_mix(seeds) + counters * np.uint64(GOLDEN)).view(np.int64)


def _mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    z = z + np.uint64(GOLDEN)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(_FIRST)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(_SECOND)
    return z ^ (z >> np.uint64(31))


def gumbel(keys: Tensor, counters: Tensor) -> Tensor:
    """Standard Gumbel noise, float64, for each pair of a key and a counter (int64, broadcast together).

    Splitmix64 in int64 arithmetic, which wraps like uint64. The uniform number has 52 bits, so the noise is finite.
    """
    z = keys + counters * _signed(GOLDEN) + _signed(GOLDEN)
    z = (z ^ _shifted(z, 30)) * _signed(_FIRST)
    z = (z ^ _shifted(z, 27)) * _signed(_SECOND)
    uniform = (_shifted(z ^ _shifted(z, 31), 12).double() + 0.5) * 2.0**-52
    return -(-uniform.log()).log()


def _signed(constant: int) -> int:
    return constant - (1 << 64)


def _shifted(z: Tensor, by: int) -> Tensor:
    """Logical right shift of int64."""
    return (z >> by) & ((1 << 64 - by) - 1)


def draw(
    logits: Tensor,
    keys: Tensor,
    *,
    temperature: Tensor | None = None,
    top_p: Tensor | None = None,
    greedy: Tensor | None = None,
) -> Drawn:
    """Samples a token for each row, without synchronizing with the device.

    Settings that no row needs are None: this saves passes over the vocabulary.

    Args:
        logits: [rows, vocab].
        keys: int64 [rows], from `row_keys`.
        temperature: float32 [rows], above 0. None: 1 for all rows.
        top_p: float32 [rows], in (0, 1]. None: 1 for all rows.
        greedy: bool [rows]; these rows take the most likely token. None: no row.
    """
    logits = logits.float()
    if temperature is not None:
        logits = logits / temperature[:, None]
    if top_p is not None:
        logits = _nucleus(logits, top_p)
    vocabulary = logits.shape[1]
    size = 1 << (vocabulary - 1).bit_length() // 2
    highest = logits.amax(-1, keepdim=True)
    # exp2 is three times faster than exp.
    masses = _by_pieces((logits - highest).mul_(LOG2_E).exp2_(), size, "sum")
    pieces = torch.arange(masses.shape[1], device=logits.device)
    scores = masses.double().log() + gumbel(keys[:, None], -1 - pieces)
    if greedy is not None:
        scores = torch.where(greedy[:, None], _by_pieces(logits, size, "amax"), scores)
    piece, first_margin = _race(scores)
    ids = piece * size + torch.arange(size, device=logits.device)
    inside = logits.gather(1, ids.clamp(max=vocabulary - 1)).double().masked_fill_(ids >= vocabulary, -torch.inf)
    noise = gumbel(keys[:, None], ids)
    if greedy is not None:
        noise = noise.masked_fill_(greedy[:, None], 0.0)
    within, second_margin = _race(inside + noise)
    tokens = piece * size + within
    total = masses.sum(-1, keepdim=True, dtype=torch.float64).log()
    logprobs = inside.gather(1, within) - highest - total
    margins = torch.minimum(first_margin, second_margin)
    if temperature is None:
        temperature = torch.ones_like(highest[:, 0])
    unit = (highest.abs() * temperature[:, None]).clamp_(min=1.0)
    margins = torch.minimum(first_margin, second_margin) * temperature[:, None] / unit
    return Drawn(tokens[:, 0], logprobs[:, 0].float(), margins[:, 0].float())


def _by_pieces(values: Tensor, size: int, reduce: str) -> Tensor:
    """Sum or maximum of each piece of `size` values of a row, [rows, pieces]; the last piece may be shorter."""
    over = getattr(torch, reduce)
    rows, vocabulary = values.shape
    whole = vocabulary - vocabulary % size
    reduced: Tensor = over(values[:, :whole].view(rows, -1, size), -1)
    if whole == vocabulary:
        return reduced
    return torch.cat([reduced, over(values[:, whole:], -1, keepdim=True)], 1)


def _race(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the index of each row's largest score, and its lead over the second (else infinite), [rows, 1] each.

    If scores are not finite the index is arbitrary, and the log-probability is not finite.
    """
    winner = scores.argmax(-1, keepdim=True)
    best = scores.gather(1, winner)
    lead = best - scores.scatter(1, winner, -torch.inf).amax(-1, keepdim=True)
    return winner, lead


def _nucleus(logits: Tensor, top_p: Tensor) -> Tensor:
    """Keeps each row's smallest set of most likely tokens with mass `top_p`; the other logits become -inf."""
    ordered, order = logits.sort(-1, descending=True)
    mass = ordered.softmax(-1)
    dropped = (mass.cumsum(-1) - mass >= top_p[:, None]) & (top_p[:, None] < 1)
    dropped[:, 0].fill_(False)
    return logits.masked_fill(dropped.gather(1, order.argsort(-1)), -torch.inf)
