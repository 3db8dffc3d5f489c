"""Pictures: a board of nine buttons, one of them lit; a click on it lights the next, until three were pressed."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

from agentrl import Environment, Message, Say, Task, ToolResult, tool

SIDE, PRESSES = 3, 3
DARK, LIT, FRAME = (60, 60, 60), (255, 200, 0), (230, 230, 230)


def boards(n: int = 64, split: str = "train", cell: int = 8) -> Iterator[Task]:
    """Yields tasks; the boards of `test` differ from those of `train`. A button has `cell` pixels, each way."""
    every = list(itertools.permutations(range(SIDE * SIDE), PRESSES))
    random.Random(0).shuffle(every)
    half = len(every) // 2
    for k, lit in enumerate((every[:half] if split == "train" else every[half:])[:n]):
        yield Task.of(f"{split}{k}", "Click the lit button.", cell=cell, lit=list(lit))


class Board(Environment):
    """The board."""

    def open(self, task: Task, sandbox: object) -> None:
        self.cell: int = task.data["cell"]
        self.left: list[int] = list(task.data["lit"])

    def opening(self) -> Message:
        return {"role": "user", "content": [{"type": "image", "image": self.picture()}]}

    def state_key(self) -> list[int]:
        return self.left

    @tool
    def click(self, x: int, y: int) -> ToolResult:
        """Click at a pixel.

        Args:
            x: from the left.
            y: from the top.
        """
        size = SIDE * self.cell
        hit = 0 <= x < size and 0 <= y < size and self.left[0] == x // self.cell + SIDE * (y // self.cell)
        self.left = self.left[hit:]
        done = not self.left
        images = [] if done else [self.picture()]
        return ToolResult("", images=images, done=done, points=[(x, y)])

    def picture(self) -> Any:
        """Returns the board as a PIL image."""
        from PIL import Image, ImageDraw

        image = Image.new("RGB", (SIDE * self.cell, SIDE * self.cell), FRAME)
        draw = ImageDraw.Draw(image)
        for at in range(SIDE * SIDE):
            left, top = at % SIDE * self.cell, at // SIDE * self.cell
            box = (left + 1, top + 1, left + self.cell - 2, top + self.cell - 2)
            draw.rectangle(box, LIT if at == self.left[0] else DARK)
        return image


def pressed(env: Board) -> float:
    """Returns the share of the buttons that were pressed."""
    return 1 - len(env.left) / PRESSES


def oracle(task: Task, rng: random.Random) -> Iterator[Say]:
    """Clicks the middle of each lit button."""
    cell = task.data["cell"]
    for at in task.data["lit"]:
        yield Say(calls=[("click", {"x": at % SIDE * cell + cell // 2, "y": at // SIDE * cell + cell // 2})])
