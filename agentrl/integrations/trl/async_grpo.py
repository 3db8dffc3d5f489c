"""Our episodes and credit in TRL's AsyncGRPOTrainer, through the two protocols that it takes from outside.

It knows one advantage a sample, so that every turn becomes a sample of its own: the history up to the turn's end, of
which only the turn trains. Its prefix trie forwards the shared history once. TRL 1.16 runs it on CUDA alone: its
attention is a flash-attention kernel.
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
    """A sample for each trained turn of a row.

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
    """A rollout worker (TRL's RolloutWorkerProtocol) that fills the buffer from a thread of this process.

    Args:
        play: given the policy's version, plays some groups to the end and yields their rows with advantages.
        capacity: samples that wait at most; then playing waits.
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
        """Begins to play."""
        self._thread.start()

    def stop(self) -> None:
        """Ends after the rows under way."""
        self._over.set()
        if self._thread.ident is not None:  # training may have failed before it began
            self._thread.join(timeout=60)

    def update_model_version(self, model_version: int) -> None:
        """Samples that follow are of this version."""
        self._version = model_version

    def check_health(self, stale_after_s: float) -> None:
        """Raises TrainError if playing failed, or nothing came for so long."""
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
    """Weight transfer (TRL's WeightTransferProtocol) into one of our engines, whatever its loop is busy with.

    Args:
        loop: the event loop that the engine lives in, run by another thread.
    """

    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop) -> None:
        self._engine, self._loop, self._version = engine, loop, 0

    def init_weight_transfer(self) -> None:
        """Nothing to open."""

    def pause(self) -> None:
        """Nothing to do: our engines take weights between two steps."""

    def send_weights(self, iterator: Iterator[tuple[str, Tensor]]) -> None:
        """Hands all weights over, and returns when the engine has them."""
        weights = {name: tensor.detach() for name, tensor in iterator}
        update: Any = self._engine.update(weights, self._version)
        asyncio.run_coroutine_threadsafe(update, self._loop).result(timeout=600)
        self._version += 1

    def resume(self) -> None:
        """Nothing to do."""

    def destroy(self) -> None:
        """Nothing to close."""
