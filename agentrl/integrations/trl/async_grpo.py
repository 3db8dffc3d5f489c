"""Our episodes and credit in TRL's AsyncGRPOTrainer, through its two extension protocols.

The trainer takes one advantage per sample, so each turn becomes a sample: the history up to the turn's end, with loss
only on the turn. Its prefix trie forwards the shared history once. TRL 1.16 runs it only on CUDA, because its attention
is a flash-attention kernel.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from torch import Tensor

from agentrl.types.engine import Engine
from agentrl.types.errors import TrainError, needs
from agentrl.types.sample import TrainingSample

with needs("trl"):
    from trl.experimental.async_grpo.async_rollout_worker import RolloutSample


def turn_samples(row: TrainingSample, version: int, group: int) -> list[RolloutSample]:
    """Returns one sample per trained turn of a row.

    Raises:
        TrainError: the tokens of a turn have different advantages.
    """
    out = []
    for turn, start, end in row.turn_spans:
        advantages = row.advantage[start:end]
        if np.ptp(advantages) > 0:
            raise TrainError(
                f"episode {row.episode_id}, turn {turn}: its tokens have different advantages",
                remedy="AsyncGRPOTrainer knows one advantage a sample: take credit by turn or episode, or trl.grpo",
            )
        mask = np.zeros(end, np.int64)
        mask[start:end] = 1
        out.append(
            RolloutSample(
                prompt=[],
                completion=[],
                input_ids=row.token_ids[:end],
                completion_mask=mask,
                old_log_probs=np.where(mask, row.behaviour_logprob[:end], 0).astype(np.float32),
                advantage=float(advantages[0]),
                model_version=version,
                group_id=group,
                metrics={"reward": row.reward},
                enqueued_at=time.time(),
            )
        )
    return out


class EpisodeWorker:
    """Rollout worker (TRL's RolloutWorkerProtocol) that fills the buffer from a thread of this process.

    Args:
        play: takes the policy's version, plays some groups to the end and yields their rows with advantages.
        capacity: maximum samples in the buffer; playing blocks when it is full.
    """

    def __init__(self, play: Callable[[int], Iterable[TrainingSample]], capacity: int = 1024) -> None:
        self.rollout_buffer: queue.Queue[RolloutSample] = queue.Queue(capacity)
        self.metrics_queue: queue.Queue[dict[str, float]] = queue.Queue()
        self._play, self._version = play, 0
        self._groups: dict[str, int] = {}
        self._over = threading.Event()
        self._failure: BaseException | None = None
        self._last = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="agentrl-rollouts", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stops after the current rows."""
        self._over.set()
        if self._thread.ident is not None:  # training may have failed before the start
            self._thread.join(timeout=60)

    def update_model_version(self, model_version: int) -> None:
        """Sets the version of the following samples."""
        self._version = model_version

    def check_health(self, stale_after_s: float) -> None:
        """Raises TrainError if playing failed or no rows came for `stale_after_s`."""
        if self._failure is not None:
            raise TrainError(f"rollouts failed: {self._failure}", place="EpisodeWorker") from self._failure
        if time.monotonic() - self._last > stale_after_s:
            raise TrainError(f"no rollout for {stale_after_s:g} s", place="EpisodeWorker")

    def _run(self) -> None:
        try:
            while not self._over.is_set():
                version = self._version
                for row in self._play(version):
                    group = self._groups.setdefault(row.group_id, len(self._groups))
                    for sample in turn_samples(row, version, group):
                        self._put(sample)
                    self._last = time.monotonic()
        except BaseException as error:
            self._failure = error

    def _put(self, sample: RolloutSample) -> None:
        while not self._over.is_set():
            try:
                self.rollout_buffer.put(sample, timeout=0.2)
                return
            except queue.Full:
                continue


class EngineTransfer:
    """Weight transfer (TRL's WeightTransferProtocol) into one of our engines, from another thread.

    Args:
        loop: event loop of the engine, run by another thread.
    """

    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop) -> None:
        self._engine, self._loop, self._version = engine, loop, 0

    def init_weight_transfer(self) -> None:
        """Does nothing."""

    def pause(self) -> None:
        """Does nothing: our engines take weights between two steps."""

    def send_weights(self, iterator: Iterator[tuple[str, Tensor]]) -> None:
        """Sends all weights and waits until the engine has loaded them."""
        weights = {name: tensor.detach() for name, tensor in iterator}
        update: Any = self._engine.update(weights, self._version)
        asyncio.run_coroutine_threadsafe(update, self._loop).result(timeout=600)
        self._version += 1

    def resume(self) -> None:
        """Does nothing."""

    def destroy(self) -> None:
        """Does nothing."""
