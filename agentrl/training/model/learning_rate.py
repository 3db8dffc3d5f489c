"""The learning rate of a training: a linear warm-up, then a schedule."""

from __future__ import annotations

import math
from collections.abc import Callable

from agentrl.config.train import LrSchedule

SCHEDULES: dict[LrSchedule, Callable[[float, float], float]] = {
    "constant": lambda done, whole: 1.0,
    "linear": lambda done, whole: (whole - done) / whole,
    "cosine": lambda done, whole: 0.5 * (1.0 + math.cos(math.pi * done / whole)),
}
"""Factor of the peak rate after `done` of `whole`."""


def learning_rate(peak: float, step: int, warmup: int, schedule: LrSchedule, done: float, whole: float = 1.0) -> float:
    """The learning rate of an optimiser step.

    Args:
        step: number of earlier steps.
        warmup: number of steps in which the rate rises from 0 to `peak`.
        done: progress of the schedule, from 0 to `whole`.
    """
    return peak * min(1.0, (step + 1) / max(warmup, 1)) * SCHEDULES[schedule](done, whole)
