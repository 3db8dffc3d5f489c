"""The decode step: from the last token of every running row to its next one."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentrl.engines.embedded.cached_model import Fill, RowModel
from agentrl.engines.embedded.draw import Drawn, draw, row_keys

if TYPE_CHECKING:
    from agentrl.engines.embedded.request import Request


class Ask(IntEnum):
    """What a step is told of a row: a line of its inputs each."""

    TOKEN = 0
    POSITION = 1
    KEY = 2  # the bits of an int64
    TEMPERATURE = 3
    TOP_P = 4
    GREEDY = 5


IDLE = np.array([[0.0], [0.0], [0.0], [1.0], [1.0], [0.0]])
"""What a row asks that pads a tile: it sees and overwrites its own first slot, which nobody else reads."""


CLOSE = 2.0**-16
"""In float32, draws whose margin (`Drawn.margins`) is below this are made again. Between batches of different shapes
logits of SmolLM2-135M differ by 8e-6 of the highest one at most and by 1e-6 on average, those of tiny models by 2e-6 at
most; the more is made again, the more it costs."""


OUTPUTS = len(Drawn._fields)


class Shape(NamedTuple):
    """What the operations of a step depend on: rows, slots that attention reads, and how some row is drawn."""

    rows: int
    length: int
    tempered: bool
    nucleus: bool
    greedy: bool


class Decoder:
    """Draws a token for every running row.

    A step takes one small tensor in and gives one out, so that a GPU is waited for once. It is a function of them, the
    arena and the weights alone.

    In float32, a draw that rounding could have decided is made again in a form that depends on its row's tokens and
    the weights alone: the row by itself, from its first token on. So are all draws then, as far as tokens go.

    Args:
        max_rows: most rows that run at once.

    Attributes:
        redrawn: draws so far that were made again.
    """

    def __init__(self, model: RowModel, max_rows: int) -> None:
        self._model = model
        self._tile = model.tile
        rows = max_rows if self._tile is None else -(-max_rows // self._tile) * self._tile
        pinned = model.device.type == "cuda"
        # float64 holds token ids and positions exactly.
        self._host = torch.zeros((len(Ask), rows), dtype=torch.float64, pin_memory=pinned)
        self._inputs = self._host.to(model.device)
        self._outputs = torch.zeros((rows, OUTPUTS), dtype=torch.float64, device=model.device)
        self._asked: NDArray[np.float64] = self._host.numpy()
        self._running: Sequence[Request] = ()
        self._seeds = self._drawn = np.zeros(0, np.uint64)
        self._longest = 0
        self._shape = Shape(0, 0, tempered=False, nucleus=False, greedy=False)
        self._close = CLOSE if self._tile is None and model.dtype in (torch.float32, torch.float64) else 0.0
        self.redrawn = 0

    def lay_out(self, running: Sequence[Request]) -> None:
        """Takes over the requests that run from now on; row i of the arena is that of `running[i]`."""
        self._running, count = running, len(running)
        self._longest = max(len(request.token_ids) for request in running)
        temperature = np.array([request.sampling.temperature for request in running], np.float64)
        top_p = np.array([request.sampling.top_p for request in running], np.float64)
        greedy = temperature == 0
        temperature[greedy] = top_p[greedy] = 1
        self._shape = Shape(
            rows=count,
            length=self._longest,
            tempered=bool((temperature != 1).any()),
            nucleus=bool((top_p < 1).any()),
            greedy=bool(greedy.any()),
        )
        self._asked[:] = IDLE
        self._asked[Ask.TOKEN, :count] = [request.token_ids[-1] for request in running]
        self._asked[Ask.POSITION, :count] = [len(request.token_ids) - 1 for request in running]
        self._asked[Ask.TEMPERATURE, :count] = temperature
        self._asked[Ask.TOP_P, :count] = top_p
        self._asked[Ask.GREEDY, :count] = greedy
        self._seeds = np.array([request.seed for request in running], np.uint64)
        self._drawn = np.array([len(request.logprobs) for request in running], np.uint64)

    def step(self) -> tuple[list[int], list[float]]:
        """The next token of every row that was laid out, and its log-probability."""
        count = len(self._seeds)
        asked = self._asked[:, :count]
        asked[Ask.KEY] = row_keys(self._seeds, self._drawn).view(np.float64)
        if self._inputs is not self._host:
            self._inputs.copy_(self._host, non_blocking=True)
        self._run(count)
        # The one wait of a step; only then may the host's side of the inputs change.
        tokens, logprobs, margins = self._outputs[:count].cpu().numpy().T
        for row in np.flatnonzero(margins < self._close).tolist():
            tokens[row], logprobs[row] = self._redraw(row)
        asked[Ask.TOKEN] = tokens
        asked[Ask.POSITION] += 1
        self._drawn += np.uint64(1)
        self._longest += 1
        return tokens.astype(np.int64).tolist(), logprobs.tolist()

    def _run(self, count: int) -> None:
        """The step, of all rows at once or tile by tile."""
        arena, inputs, outputs = self._model.arena, self._inputs, self._outputs
        if (tile := self._tile) is not None:
            arena.reserve(count + 1, self._longest)
            for first in range(0, count, tile):
                shape = self._shape._replace(rows=min(tile, count - first), length=self._longest)
                run_step(self._model, inputs[:, first : first + tile], outputs[first : first + tile], shape, first)
            return
        arena.reserve(count, self._longest)
        run_step(self._model, inputs, outputs, self._shape._replace(length=self._longest))

    def _redraw(self, row: int) -> tuple[float, float]:
        """The same draw by the row alone, in a row of the arena that nobody has, its cache computed anew."""
        self.redrawn += 1
        token_ids, spare = self._running[row].token_ids, len(self._running)
        self._model.arena.reserve(spare + 1, len(token_ids))
        self._model.fill([Fill(spare, 0, token_ids[:-1])])
        output = torch.zeros((1, OUTPUTS), dtype=torch.float64, device=self._model.device)
        shape = self._shape._replace(rows=1, length=len(token_ids))
        run_step(self._model, self._inputs[:, row : row + 1], output, shape, spare)
        token, logprob, *_ = output[0].tolist()
        return token, logprob


def run_step(model: RowModel, inputs: Tensor, outputs: Tensor, shape: Shape, first: int = 0) -> None:
    """The step on the device: it waits for nothing there.

    Args:
        inputs: float64 [len(Ask), rows or more].
        outputs: float64 [rows or more, OUTPUTS]: here come the tokens, their log-probabilities, and the margins of
            the draws.
        first: the rows of the arena from this one on.
    """
    asked = inputs[:, : model.tile or shape.rows]
    ids, slots = asked[: Ask.POSITION + 1, :, None].long()
    logits = model.decode(ids, slots, shape.length, first, shape.rows)
    drawn = draw(
        logits,
        asked[Ask.KEY].view(torch.int64),
        temperature=asked[Ask.TEMPERATURE].float() if shape.tempered else None,
        top_p=asked[Ask.TOP_P].float() if shape.nucleus else None,
        greedy=asked[Ask.GREEDY].bool() if shape.greedy else None,
    )
    for column, values in enumerate(drawn):
        outputs[: len(values), column] = values
