"""Where is it? A screenshot, an instruction, and the box of the element as the answer."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from agentrl import Say, Task
from agentrl.registry.references import load_object
from agentrl.rewards.functions.boxes import boxes_in
from agentrl.types.episode import Episode

GROUNDING = Path(__file__).parents[2] / "grounding"
steps: Callable[..., Iterator[Task]] = load_object("./task.py:steps", GROUNDING)


def places(n: int = 512, **args: Any) -> Iterator[Task]:
    """The first `n` of the steps of recipes/grounding that act on an element, with its box."""
    made = 0
    for task in steps(n=2 * n, **args):
        (action,) = task.data["actions"]
        if "box" in action and made < n:
            made += 1
            yield Task.of(task.id, task.instruction, box=action["box"], size=task.data["size"])


def hit(task: Task, episode: Episode) -> float:
    """1 if the middle of the box is in the element: a click there would hit it."""
    said, (left, top, right, bottom) = boxes_in(episode.answer or ""), task.data["box"]
    x, y = ((said[0][0] + said[0][2]) / 2, (said[0][1] + said[0][3]) / 2) if said else (math.nan, math.nan)
    return float(left <= x <= right and top <= y <= bottom)


def pointer(task: Task, rng: random.Random) -> Iterator[Say]:
    """Answers with the box."""
    yield Say(f"<answer>{task.data['box']}</answer>")
