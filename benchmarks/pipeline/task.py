"""A chore: so many calls of a tool that takes as long as the pipeline says, with the simulator's own draws."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

from agentrl import Say, Task, Tool, ToolResult, tool
from agentrl.simulate.pipeline import EpisodeCosts

DRAWS: ContextVar[random.Random] = ContextVar("draws")
"""Of the episode that runs in this context; the engine sets it, which knows which one that is."""


def chores(n: int) -> Iterator[Task]:
    """Equal tasks."""
    for k in range(n):
        yield Task.of(f"chore{k}", "Work.")


class Chore(Tool):
    """Sleeps."""

    def __init__(self, costs: dict[str, Any] | None = None) -> None:
        self.costs = EpisodeCosts.model_validate(costs or {})

    async def open(self, task: Task, sandbox: object) -> None:
        """A fresh count."""
        self.left = round(self.costs.turns.mean)

    @tool
    async def work(self) -> ToolResult:
        """Does a part of it."""
        await asyncio.sleep(self.costs.tool_s.draw(DRAWS.get()) if DRAWS.get(None) else 0)
        self.left -= 1
        return ToolResult("ok", done=self.left <= 0)


def finished(task: Task, episode: Any) -> float:
    """Whether the chore was done."""
    return float(episode.stop == "tool")


def demo(task: Task, rng: random.Random) -> Any:
    """Works to the end."""
    while True:
        yield Say(calls=[("work", {})])
