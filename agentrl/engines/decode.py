"""The decode step: from the last token of every running row to its next one, eagerly or by CUDA graphs."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentrl.engines.cached_model import CachedModel, causal
from agentrl.engines.draw import draw, uniforms
from agentrl.engines.graphs import Graphs, rung

if TYPE_CHECKING:
    from agentrl.engines.batch import Request


class Ask(IntEnum):
    """What a step is told of a row: a line of its inputs each."""

    TOKEN = 0
    POSITION = 1
    UNIFORM = 2
    TEMPERATURE = 3
    TOP_P = 4
    GREEDY = 5


IDLE = np.array([[0.0], [0.0], [0.0], [1.0], [1.0], [0.0]])
"""What a row asks that pads a graph's shape: it sees and overwrites its own first slot, which nobody else reads."""


class Shape(NamedTuple):
    """What the operations of a step depend on: rows, slots that attention reads, and how some row is drawn."""

    rows: int
    length: int
    tempered: bool
    nucleus: bool
    greedy: bool


class Decoder:
    """Draws a token for every running row.

    A step takes one small tensor in and gives one out, so that a GPU is waited for once. Both keep their addresses,
    and the step is a function of them, the arena and the weights alone: it can be captured, and run twice.

    Args:
        max_rows: most rows that run at once.
        graphs: None runs every step as it is, in the shape that it has.
    """

    def __init__(self, model: CachedModel, max_rows: int, graphs: Graphs | None) -> None:
        self._model, self._graphs = model, graphs
        rows = _rows(max_rows)
        pinned = model.device.type == "cuda"
        # float64 holds token ids and positions exactly.
        self._host = torch.zeros((len(Ask), rows), dtype=torch.float64, pin_memory=pinned)
        self._inputs = self._host.to(model.device)
        self._outputs = torch.zeros((rows, 2), dtype=torch.float64, device=model.device)
        self._asked: NDArray[np.float64] = self._host.numpy()
        self._seeds = self._drawn = np.zeros(0, np.uint64)
        self._longest = 0
        self._shape = Shape(0, 0, tempered=False, nucleus=False, greedy=False)

    def lay_out(self, running: Sequence[Request]) -> None:
        """Takes over the requests that run from now on; row i of the arena is that of `running[i]`."""
        count = len(running)
        self._longest = max(len(request.token_ids) for request in running)
        temperature = np.array([request.sampling.temperature for request in running], np.float64)
        top_p = np.array([request.sampling.top_p for request in running], np.float64)
        greedy = temperature == 0
        temperature[greedy] = top_p[greedy] = 1
        self._shape = Shape(
            rows=count if self._graphs is None else _rows(count),
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
        asked[Ask.UNIFORM] = uniforms(self._seeds, self._drawn)
        length = self._longest if self._graphs is None else rung(self._longest, 64)
        shape = self._shape._replace(length=length)
        arena = self._model.arena
        arena.reserve(shape.rows, shape.length)
        if self._inputs is not self._host:
            self._inputs.copy_(self._host, non_blocking=True)
        run = partial(run_step, self._model, self._inputs, self._outputs, shape)
        if self._graphs is None:
            run()
        else:
            self._graphs.run(shape, arena.moves, run)
        # The one wait of a step; only then may the host's side of the inputs change.
        tokens, logprobs = self._outputs[:count].cpu().numpy().T
        asked[Ask.TOKEN] = tokens
        asked[Ask.POSITION] += 1
        self._drawn += np.uint64(1)
        self._longest += 1
        return tokens.astype(np.int64).tolist(), logprobs.tolist()


def run_step(model: CachedModel, inputs: Tensor, outputs: Tensor, shape: Shape) -> None:
    """The step on the device. A capture forbids what waits for the device, or copies from the host's memory.

    Args:
        inputs: float64 [len(Ask), rows or more].
        outputs: float64 [rows or more, 2]: here come the tokens and their log-probabilities.
    """
    asked = inputs[:, : shape.rows]
    ids, slots = asked[: Ask.POSITION + 1, :, None].long()
    model.arena.aim(0, slots, shape.length)
    logits = model.forward(ids, slots, causal(slots, shape.length), keep=1)[:, -1]
    tokens, logprobs = draw(
        logits,
        asked[Ask.UNIFORM],
        temperature=asked[Ask.TEMPERATURE].float() if shape.tempered else None,
        top_p=asked[Ask.TOP_P].float() if shape.nucleus else None,
        greedy=asked[Ask.GREEDY].bool() if shape.greedy else None,
    )
    outputs[: shape.rows, 0] = tokens
    outputs[: shape.rows, 1] = logprobs


def _rows(count: int) -> int:
    """Rows of a captured step: a few more than run. Below 8 powers of two, for there every row counts."""
    return rung(count, 8) if count > 8 else 1 << (count - 1).bit_length()
