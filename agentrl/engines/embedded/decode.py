"""Sampling of tokens for running rows (from a decode step) and for new rows (from their prefill's last logits)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from agentrl.engines.embedded.cached_model import RowModel
from agentrl.engines.embedded.draw import draw, row_keys
from agentrl.engines.embedded.forward.prefill import Fill

if TYPE_CHECKING:
    from agentrl.engines.embedded.request import DecodeRequest

CLOSE = 2.0**-16
"""In float32, draws with a margin (`Drawn.margins`) below this are repeated. Between batches of different shapes, the
logits of SmolLM2-135M differ by at most 8e-6 of the highest one and by 1e-6 on average, those of tiny models by at most
2e-6. A larger value repeats more draws and costs more."""


class Ways(NamedTuple):
    """Sampling settings of rows, [rows] each; None if all rows have the default (1, 1, False)."""

    temperature: Tensor | None
    top_p: Tensor | None
    greedy: Tensor | None

    @classmethod
    def of(cls, requests: Sequence[DecodeRequest], rows: int, device: torch.device) -> Ways:
        """The settings of requests, followed by padding up to `rows`."""
        given = [(request.sampling.temperature, request.sampling.top_p) for request in requests]
        temperature, top_p = every = torch.ones((2, rows), dtype=torch.float32)
        every[:, : len(given)] = torch.tensor(given, dtype=torch.float32).T
        greedy = temperature == 0
        temperature[greedy] = top_p[greedy] = 1
        return cls(
            temperature.to(device) if (temperature != 1).any() else None,
            top_p.to(device) if (top_p < 1).any() else None,
            greedy.to(device) if greedy.any() else None,
        )


class Decoder:
    """Draws a token for every row.

    In float32, a draw that rounding could have decided is repeated with its row alone, recomputed from its first token.
    The repeated draw depends only on the row's tokens and the weights, so sampled tokens do not depend on the batch.

    Attributes:
        redrawn: number of draws repeated so far.
    """

    def __init__(self, model: RowModel) -> None:
        self._model = model
        self._running: Sequence[DecodeRequest] = ()
        self._ways: list[Ways] = []
        self._close = CLOSE if model.tile is None and model.dtype in (torch.float32, torch.float64) else 0.0
        self.redrawn = 0

    def lay_out(self, running: Sequence[DecodeRequest]) -> None:
        """Sets the running requests; row i of the arena belongs to `running[i]`."""
        self._running = running
        self._ways = [self._ways_of(some) for _, some in self._parts(running)]

    def step(self) -> tuple[list[int], list[float]]:
        """Forwards and draws the next token of every running row. Returns tokens and log-probabilities."""
        tokens: list[int] = []
        logprobs: list[float] = []
        model, longest = self._model, max(len(request.token_ids) for request in self._running)
        model.arena.reserve(len(self._running), longest)
        for (first, some), ways in zip(self._parts(self._running), self._ways, strict=True):
            ids = torch.tensor([[request.token_ids[-1]] for request in some], device=model.device)
            slots = torch.tensor([[len(request.token_ids) - 1] for request in some], device=model.device)
            logits = model.decode(ids, slots, longest, first)
            drawn = self._draw(some, logits, ways, spare=len(self._running))
            tokens += drawn[0]
            logprobs += drawn[1]
        return tokens, logprobs

    def first(self, entered: Sequence[DecodeRequest], logits: Tensor, spare: int) -> tuple[list[int], list[float]]:
        """Draws the first token of each new request. Returns tokens and log-probabilities.

        Args:
            logits: [requests, vocab], after the prompts.
            spare: first free row of the arena.
        """
        tokens: list[int] = []
        logprobs: list[float] = []
        for first, some in self._parts(entered):
            padding = self._model.padded(len(some)) - len(some)
            part = functional.pad(logits[first : first + len(some)], (0, 0, 0, padding))
            drawn = self._draw(some, part, self._ways_of(some), spare)
            tokens += drawn[0]
            logprobs += drawn[1]
        return tokens, logprobs

    def _parts(self, requests: Sequence[DecodeRequest]) -> list[tuple[int, Sequence[DecodeRequest]]]:
        """Splits requests into parts of at most `tile`, each with the index of its first request."""
        most = self._model.tile or max(1, len(requests))
        return [(first, requests[first : first + most]) for first in range(0, len(requests), most)]

    def _ways_of(self, requests: Sequence[DecodeRequest]) -> Ways:
        return Ways.of(requests, self._model.padded(len(requests)), self._model.device)

    def _draw(
        self, requests: Sequence[DecodeRequest], logits: Tensor, ways: Ways, spare: int
    ) -> tuple[list[int], list[float]]:
        tokens, logprobs, margins = _drawn(requests, logits, ways)
        for row, margin in enumerate(margins):
            if margin < self._close:
                tokens[row], logprobs[row] = self._redraw(requests[row], spare)
        return [int(token) for token in tokens], logprobs

    def _redraw(self, request: DecodeRequest, spare: int) -> tuple[float, float]:
        """Repeats a draw with the row alone: recomputes its cache in the free row `spare`."""
        self.redrawn += 1
        ids, device = request.token_ids, self._model.device
        self._model.arena.reserve(spare + 1, len(ids))
        self._model.fill([Fill(spare, 0, ids[:-1])])
        last, slot = (torch.tensor([[value]], device=device) for value in (ids[-1], len(ids) - 1))
        logits = self._model.decode(last, slot, len(ids), spare)
        tokens, logprobs, _ = _drawn([request], logits, self._ways_of([request]))
        return tokens[0], logprobs[0]


def _drawn(requests: Sequence[DecodeRequest], logits: Tensor, ways: Ways) -> list[list[float]]:
    """Tokens, log-probabilities and margins by request. Further rows of `logits` and `ways` are padding."""
    seeds, counts = np.zeros((2, len(logits)), np.uint64)
    seeds[: len(requests)] = [request.seed for request in requests]
    counts[: len(requests)] = [len(request.logprobs) for request in requests]
    keys = torch.from_numpy(row_keys(seeds, counts)).to(logits.device)
    drawn = draw(logits, keys, temperature=ways.temperature, top_p=ways.top_p, greedy=ways.greedy)
    # The only synchronization with the device. float64 represents token ids exactly.
    found: list[list[float]] = torch.stack([column.double() for column in drawn])[:, : len(requests)].tolist()
    return found
