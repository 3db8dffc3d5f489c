"""The learning rate over a training: it rises over the first steps, and falls by a schedule."""

from __future__ import annotations

import math
from collections.abc import Callable

from agentrl.config.train import LrSchedule

SCHEDULES: dict[LrSchedule, Callable[[float, float], float]] = {
    "constant": lambda done, whole: 1.0,
    "linear": lambda done, whole: (whole - done) / whole,
    "cosine": lambda done, whole: 0.5 * (1.0 + math.cos(math.pi * done / whole)),
}
"""Factor of the rate when `done` of the whole is behind."""


def learning_rate(peak: float, step: int, warmup: int, schedule: LrSchedule, done: float, whole: float = 1.0) -> float:
    """The rate of an optimiser step.

    Args:
        step: steps before it.
        warmup: steps over which the rate rises from 0 to `peak`.
        done: how much of what the schedule runs over is behind: of `whole`, from 0 on.
    """
    return peak * min(1.0, (step + 1) / max(warmup, 1)) * SCHEDULES[schedule](done, whole)
