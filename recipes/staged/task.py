"""Counting with a tool: the policy is told a number, and has to add steps up to it, one call a turn."""

from __future__ import annotations

import random
from collections.abc import Generator, Iterator

from agentrl import Episode, Message, Say, Task, Tool, ToolResult, tool


def numbers(highest: int = 7) -> Iterator[Task]:
    """A task for every number."""
    for to in range(1, highest + 1):
        yield Task.of(f"count{to}", f"Count to {to}.", to=to)


class Counter(Tool):
    """A sum that begins at 0. It ends the episode when the number is reached or passed."""

    async def open(self, task: Task, sandbox: object) -> None:
        self.sum, self.to = 0, task.data["to"]

    @tool
    async def add(self, by: int) -> ToolResult:
        """Add to the sum."""
        self.sum += by
        return ToolResult(str(self.sum), done=self.sum >= self.to)

    def state_key(self) -> str:
        return str(self.sum)


def exact(task: Task, episode: Episode) -> float:
    """1 if the sum is the number, 0 if it went beyond or stopped before."""
    said = [call.result for turn in episode.turns for call in turn.calls if call.outcome == "ok"]
    return float(said[-1:] == [str(task.data["to"])])


def hasty(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Adds 1, 2 or 3 at random, and often goes beyond."""
    while True:
        yield Say(calls=[("add", {"by": rng.randint(1, 3)})])


def oracle(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Adds what is missing."""
    yield Say(calls=[("add", {"by": task.data["to"]})])
