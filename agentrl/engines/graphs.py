"""Captured decode steps: on a GPU, one launch in place of the hundreds that a step consists of.

A decode step of a small model is bound by launching its kernels (some 15 a layer), not by running them. A CUDA graph
replays the launches of one step at once, with the shapes and the addresses that it had when it was captured. So steps
are captured by shape, rows and lengths rounded up to a `rung`, and read and write nothing but fixed buffers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from typing import Protocol

import torch

_log = logging.getLogger(__name__)

Step = Callable[[], None]
"""Works on fixed buffers, waits for no result, and does the same again when it is run again."""


class Capture(Protocol):
    """Records steps. All captures of one `Capture` share their memory: one replays at a time."""

    def __call__(self, step: Step) -> Step:
        """Records a step without running it. Returns its replay."""

    def forget(self) -> None:
        """All captures so far are dropped by their owner: the next ones share new memory."""


class CudaCapture:
    """Captures with `torch.cuda.graph`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.forget()

    def forget(self) -> None:
        # A pool that lost its last graph must not be used again.
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, step: Step) -> Step:
        graph = torch.cuda.CUDAGraph()
        # The outer block restores the stream where the inner one fails and leaves its own behind.
        with (
            torch.cuda.stream(torch.cuda.current_stream(self._device)),
            # thread_local: a trainer in another thread may allocate meanwhile.
            torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"),
        ):
            step()
        return graph.replay


class Graphs:
    """Steps by shape: run as they are the first time, captured the second, and replayed from then on.

    The first run warms up what a capture must not set up (libraries, kernels), and shapes that come only once are not
    captured. A step that cannot be captured is no error: from then on all steps run as they are, after a warning.

    Attributes:
        captured: steps that are captured now.
        replayed: steps so far that were replays.
    """

    def __init__(self, capture: Capture) -> None:
        self._capture: Capture | None = capture
        self._replays: dict[Hashable, Step] = {}
        self._met: set[Hashable] = set()
        self._memory = 0
        self.replayed = 0

    @property
    def captured(self) -> int:
        return len(self._replays)

    def run(self, shape: Hashable, memory: int, step: Step) -> None:
        """Does what `step` does.

        Args:
            shape: all that the step's operations depend on, but for the contents of its buffers.
            memory: changes when the buffers move; what was captured on the old ones is dropped.
        """
        if memory != self._memory:
            self._drop()
            self._memory = memory
        if shape in self._met and shape not in self._replays and self._capture is not None:
            self._try_capture(self._capture, shape, step)
        if (replay := self._replays.get(shape)) is None:
            self._met.add(shape)
            step()
        else:
            replay()
            self.replayed += 1

    def _try_capture(self, capture: Capture, shape: Hashable, step: Step) -> None:
        try:
            self._replays[shape] = capture(step)
        except Exception as error:
            _log.warning("decoding goes on without CUDA graphs, a step cannot be captured: %s", error)
            self._drop()
            self._capture = None

    def _drop(self) -> None:
        self._replays.clear()
        self._met.clear()
        if self._capture is not None:
            self._capture.forget()


def rung(size: int, step: int) -> int:
    """`size` rounded up to a multiple of `step`, from 4 * step on to a quarter of the next power of two below it.

    Few sizes, hence few captures; from 4 * step on at most a quarter more than asked for.
    """
    unit = max(step, 1 << max(0, (size - 1).bit_length() - 3))
    return -(-size // unit) * unit
