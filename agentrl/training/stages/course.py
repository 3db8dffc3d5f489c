"""The steps of training on a fixed set of samples: minibatches and learning rate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from agentrl.config.train import LossSettings, LrSchedule
from agentrl.training.model.learning_rate import learning_rate
from agentrl.training.supervised.minibatches import endless
from agentrl.types.sample import TrainingSample

CROSS_ENTROPY = LossSettings(use="cross_entropy")

WARMUP = 0.05
"""Share of the steps for warm-up."""


@dataclass(frozen=True)
class Course:
    """Supervised or preference training. Step k depends only on the settings and k, so that it can resume at any step.

    Attributes:
        batch: episodes per step, or groups if `pairs`; drawn in shuffled passes over all samples.
        members: episodes of a group, with `pairs`.
        lr: peak learning rate, after warm-up; then `schedule` applies.
        seed: seed of the order.
    """

    samples: Sequence[TrainingSample]
    steps: int
    batch: int
    lr: float
    seed: int
    loss: LossSettings = CROSS_ENTROPY
    pairs: bool = False
    schedule: LrSchedule = "linear"
    members: int = 2

    def steps_from(self, first: int) -> Iterator[tuple[list[TrainingSample], float]]:
        """The samples and the learning rate of each step from `first` on, for `TrainerBackend.fit`."""
        for step, samples in self._batches(first):
            yield samples, self.rate(step)

    def rate(self, step: int) -> float:
        """The learning rate of a step."""
        warmup = max(1, round(self.steps * WARMUP))
        return learning_rate(self.lr, step, warmup, self.schedule, max(step - warmup, 0), max(self.steps - warmup, 1))

    def _batches(self, first: int) -> Iterator[tuple[int, list[TrainingSample]]]:
        size = self.members * self.batch if self.pairs else self.batch
        drawn = endless(self.samples, size, np.random.default_rng(self.seed), self.pairs)
        for step, indices in islice(zip(range(self.steps), drawn, strict=False), first, None):
            yield step, [self.samples[index] for index in indices]
