"""The quickstart's mazes without a shell: the task for comparing credit, where only learning should cost time."""

from __future__ import annotations

import asyncio
import random
from typing import Any, Literal

from agentrl import Environment, Task, Tool, ToolResult, tool
from agentrl.types.episode import Episode

Door = Literal["north", "east", "south", "west"]


class Maze(Tool):
    """Walks the doors of the task's maze; finds the flag in the goal's room.

    Args:
        median: seconds that an answer takes, lognormal; 0: none.
        sigma: of the seconds' logarithm.
    """

    def __init__(self, median: float = 0.0, sigma: float = 0.0) -> None:
        self.median, self.sigma = median, sigma

    async def open(self, task: Task, sandbox: Any) -> None:
        self.doors, self.room, self.goal = task.data["doors"], task.data["start"], task.data["goal"]

    @tool
    async def cd(self, door: Door) -> ToolResult:
        """Go through a door."""
        await self._answer_takes_time()
        if self.room == self.goal:
            return ToolResult(self.room, done=True)
        before, self.room = self.room, self.doors[self.room].get(door, self.room)
        return ToolResult(self.room if self.room != before else f"wall, {self.room}", done=self.room == self.goal)

    @tool
    async def look(self) -> str:
        """List the room."""
        await self._answer_takes_time()
        return " ".join(sorted(map(str, self.doors[self.room])))

    async def _answer_takes_time(self) -> None:
        if self.median:
            await asyncio.sleep(self.median * random.lognormvariate(0.0, self.sigma))

    def state_key(self) -> str:
        return str(self.room)


class SavedMaze(Environment, Maze):
    """The same maze, whose state a fork takes instead of walking there again."""

    async def save(self) -> dict[str, Any]:
        """The room."""
        return {"room": self.room}

    async def restore(self, state: dict[str, Any]) -> None:
        """As it was saved."""
        self.room = state["room"]


def reached(task: Task, episode: Episode) -> float:
    """1 if the episode ended in the goal's room."""
    return float(_rooms(episode)[-1:] == [task.data["goal"]])


def explored(task: Task, episode: Episode) -> list[float]:
    """By turn: 1 if it led into a room that the episode had not seen."""
    seen, found = {task.data["start"]}, []
    for turn in episode.turns:
        rooms = {call.result.split()[-1] for call in turn.calls if call.name == "cd" and call.outcome == "ok"}
        found.append(float(bool(rooms - seen)))
        seen |= rooms
    return found


def _rooms(episode: Episode) -> list[str]:
    return [c.result.split()[-1] for t in episode.turns for c in t.calls if c.name == "cd" and c.outcome == "ok"]
