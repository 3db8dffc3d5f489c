"""Walks by an instruction: every turn shows what is ahead, and a reply is up to three moves; stop ends the walk."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from agentrl import Environment, Message, Observation, Reply, Say, Task
from agentrl.registry.references import load_object

BABYAI = Path(__file__).parents[2] / "babyai"
missions: Callable[..., Iterator[Task]] = load_object("./task.py:missions", BABYAI)
opened: Callable[[str], Any] = load_object("./task.py:opened", BABYAI)
ways_of: Callable[..., Iterator[str]] = load_object("./task.py:_moves", BABYAI)

MOVES = ("left", "right", "forward")
STOP, CHUNK = "stop", 3


def walks(n: int = 256, level: str = "GoToObj", held_out: bool = False) -> Iterator[Task]:
    """`n` missions to go to a thing, each with an expert's way and the turns that it takes.

    Args:
        level: one of BabyAI's levels of going to a thing.
        held_out: seeds that are kept for evaluation.
    """
    for task in missions(level=level, n=n, held_out=held_out):
        way = [*ways_of(task, random.Random(0)), STOP]
        name = task.data["game"]["kwargs"]["level"]
        yield Task.of(task.id, [], seed=task.seed, level=name, way=way, expert_turns=math.ceil(len(way) / CHUNK))


class Walk(Environment):
    """A grid as the player sees it.

    `info` holds the distance to the nearest thing of the mission, in cells between, and whether the player stopped.

    Args:
        cell: pixels of a cell, each way. Where that is a patch of the model's tower, a cell is a token.
    """

    def __init__(self, cell: int = 8) -> None:
        self.cell = cell

    def open(self, task: Task, sandbox: Any) -> None:
        self.inner = opened(task.data["level"]).unwrapped
        self.inner.reset(seed=task.seed)
        self.info = {"distance": self.distance(), "stopped": False}

    def opening(self) -> Message:
        return {"role": "user", "content": [f"{self.inner.mission}.", {"type": "image", "image": self.picture()}]}

    def respond(self, reply: Reply) -> Observation:
        """Makes the moves of a reply. One that names none, or another, ends the walk."""
        moves = [move.strip() for move in reply.text.split(",")]
        if len(moves) > CHUNK or not set(moves) <= {*MOVES, STOP}:
            return Observation("There is no such move.", done=True)
        for move in itertools.takewhile(lambda move: move != STOP, moves):
            self.inner.step(MOVES.index(move))
        self.info = {"distance": self.distance(), "stopped": STOP in moves}
        return Observation("", images=[] if STOP in moves else [self.picture()], done=STOP in moves)

    def distance(self) -> int:
        """Cells between the player and the nearest thing that the mission names."""
        x, y = self.inner.agent_pos
        return min(abs(int(a) - int(x)) + abs(int(b) - int(y)) - 1 for a, b in self.inner.instrs.desc.obj_poss)

    def picture(self) -> Any:
        """Returns the view ahead, as a PIL image."""
        from PIL import Image

        return Image.fromarray(self.inner.get_pov_render(tile_size=self.cell))

    def state_key(self) -> str:
        return f"{self.inner.agent_pos} {self.inner.agent_dir}"


def arrived(info: dict[str, Any], *, radius: float = 3.0) -> float:
    """1 - distance / radius for a walk that was stopped within it, else 0."""
    return max(0.0, 1.0 - info["distance"] / radius) if info["stopped"] else 0.0


def there(info: dict[str, Any]) -> float:
    """1 if the walk was stopped beside the thing."""
    return float(info["stopped"] and info["distance"] == 0)


def expert(task: Task, rng: random.Random) -> Iterator[Say]:
    """Goes the way, three moves a turn."""
    for at in range(0, len(task.data["way"]), CHUNK):
        yield Say(", ".join(task.data["way"][at : at + CHUNK]))
