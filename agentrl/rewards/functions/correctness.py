"""Whether an answer is right, for rewards that are paid for right answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar

from agentrl.rewards.declare import Scored
from agentrl.rewards.functions.comparers import then
from agentrl.rewards.functions.maths import maths
from agentrl.rewards.functions.verifiers import exact_match, f1, numeric
from agentrl.types.episode import Episode
from agentrl.types.task import Task

METRICS: dict[str, Callable[..., float]] = {"exact_match": exact_match, "f1": f1, "numeric": numeric}
Metric = Literal["exact_match", "f1", "numeric", "maths"]
"""The metric of rewards that use correctness."""

T = TypeVar("T")


def with_correctness(metric: Metric, task: Task, episode: Episode, key: str, follows: Callable[[float], T]) -> T:
    """What follows from the correctness of an answer; with the metric `maths` an awaitable of it.

    Raises:
        TaskError: no gold answer, or none that can be read.
    """
    if metric == "maths":
        value: Any = _maths(task, episode, key)
    else:
        value = METRICS[metric](task, episode, key=key)
    return then(value, follows)


async def _maths(task: Task, episode: Episode, key: str) -> float:
    """1 if the answer is right, as `maths` compares it, else 0."""
    found = await maths(task, episode, key=key)
    value = found.value if isinstance(found, Scored) else found
    return value if isinstance(value, float) else 0.0
