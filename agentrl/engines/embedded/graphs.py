"""Captured decode steps: on a GPU, one launch in place of the hundreds that a step consists of.

A decode step of a small model is bound by launching its kernels (some 15 a layer), not by running them. A CUDA graph
replays the launches of one step at once, with the shapes and the addresses that it had when it was captured. So steps
are captured by shape, rows and lengths rounded up to a `rung`, and read and write nothing but fixed buffers.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Protocol

import torch

from agentrl.engines.embedded.capturable import Watch

_log = logging.getLogger(__name__)

MOST_CAPTURES = 128
"""So many are kept: each takes memory of its own on the device, beside what all share."""

MOST_FAILURES = 3
"""After so many captures in a row that failed there are no more tries. One may fail for what another thread does."""

PAUSE = 256
"""Steps after a failure in which nothing is captured: seconds, until that other thread may be done."""

Step = Callable[[], None]
"""Works on fixed buffers, waits for no result, and does the same again when it is run again."""


class Capture(Protocol):
    """Records steps. All captures of one `Capture` share their memory: one replays at a time."""

    def __call__(self, step: Step) -> Step:
        """Records a step without running it. Returns its replay."""

    def forget(self) -> None:
        """All captures so far are dropped by their owner: the next ones share new memory."""


_one_at_a_time = threading.Lock()
"""Torch allows one capture at a time in a process, and there may be several engines."""

_failed: list[torch.cuda.CUDAGraph] = []
"""Captures that failed. The allocators may ask them until the process ends whether they still capture."""


class CudaCapture:
    """Captures by `torch.cuda.CUDAGraph`, whose memory comes from one pool.

    Not by `torch.cuda.graph`: that waits for the device, for what a trainer computes there too, and empties the
    allocator's caches before every capture. A capture needs neither: it runs nothing, and its pool is apart.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.forget()

    def forget(self) -> None:
        # A pool that lost its last graph must not be used again.
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, step: Step) -> Step:
        graph = torch.cuda.CUDAGraph()
        with _one_at_a_time, torch.cuda.stream(self._stream):
            try:
                # thread_local: a trainer in another thread may allocate meanwhile.
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                try:
                    step()
                finally:
                    graph.capture_end()
            except BaseException:
                self._clean_up(graph)
                raise
        return graph.replay

    def _clean_up(self, graph: torch.cuda.CUDAGraph) -> None:
        """Ends the allocator's part of a capture that failed. Torch (up to 2.13 at least) does so only where the
        stream's part ended well, and would serve the whole process from the pool from then on."""
        with suppress(RuntimeError, AttributeError):  # ended already, or a torch without these
            torch._C._cuda_endAllocateToPool(self._stream.device_index, self._pool)
            _failed.append(graph)
            torch._C._cuda_releasePool(self._stream.device_index, self._pool)
        # While it captures, the allocator frees nothing of its caches, and may be out of memory for that.
        torch.cuda.empty_cache()


class Graphs:
    """Steps by shape: run as they are the first time, captured the second, and replayed from then on.

    The first run warms up what a capture must not set up (libraries, kernels), and shapes that come only once are not
    captured. A step that cannot be captured is no error: from then on all steps run as they are, after a warning. The
    very first step is watched for that. A capture that fails later is tried again, after a pause, a few times.

    Attributes:
        captured: steps that are captured now; those that were not replayed for longest make room for others.
        replayed: steps so far that were replays.
    """

    def __init__(self, capture: Capture) -> None:
        self._capture: Capture | None = capture
        self._replays: OrderedDict[Hashable, Step] = OrderedDict()
        self._met: set[Hashable] = set()
        self._memory = 0
        self._watched = False
        self._failures = self._pause = 0
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
        self._pause = max(0, self._pause - 1)
        if shape in self._met and shape not in self._replays and self._capture is not None and not self._pause:
            self._try_capture(self._capture, shape, step)
        if (replay := self._replays.get(shape)) is None:
            self._met.add(shape)
            self._run(step)
        else:
            self._replays.move_to_end(shape)
            replay()
            self.replayed += 1

    def _run(self, step: Step) -> None:
        if self._watched:
            return step()
        with Watch() as watch:
            step()
        self._watched = True
        if watch.found is not None:
            self._give_up(watch.found)

    def _try_capture(self, capture: Capture, shape: Hashable, step: Step) -> None:
        try:
            replay = capture(step)
        except Exception as error:
            self._failures += 1
            why = error.__context__ or error  # the step's own error, if it was that
            if self._failures == MOST_FAILURES:
                return self._give_up(why)
            _log.info("a decode step was not captured, the next try is in %d steps: %s", PAUSE, why)
            self._pause = PAUSE
            if not self._replays:
                capture.forget()  # the pool has no graph
            return
        self._failures = 0
        self._replays[shape] = replay
        if len(self._replays) > MOST_CAPTURES:
            unused, _ = self._replays.popitem(last=False)
            self._met.discard(unused)

    def _give_up(self, why: object) -> None:
        _log.warning("decoding goes on without CUDA graphs, a step cannot be captured: %s", why)
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
