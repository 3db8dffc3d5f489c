"""Two formats of counting: one call, or a call for each step; pretraining on a mixture, and how often each is used."""

from __future__ import annotations

import random
from collections.abc import Generator

from agentrl import Episode, Message, Say, Task


def mixture(task: Task, rng: random.Random, steps: float = 0.75) -> Generator[Say, list[Message], None]:
    """Counts by ones three times of four, and else by one call, which misses by one half of the time."""
    if rng.random() < steps:
        for _ in range(task.data["to"]):
            yield Say(calls=[("add", {"by": 1})])
        return
    yield Say(calls=[("add", {"by": task.data["to"] + rng.choice([0, 1])})])


def _steps(episode: Episode) -> list[int]:
    return [int(call.arguments["by"]) for turn in episode.turns for call in turn.calls if call.outcome == "ok"]


def one_step(episode: Episode) -> float:
    """1 if the episode counts by one call."""
    return float(len(_steps(episode)) == 1)


def several_steps(episode: Episode) -> float:
    """1 if the episode counts by several calls of one step each."""
    steps = _steps(episode)
    return float(len(steps) > 1 and set(steps) == {1})
