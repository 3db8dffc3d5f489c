"""Functions on strings, whose names say nothing, and compositions of them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator

from agentrl import Say, Task

FUNCTIONS: dict[str, Callable[[str], str]] = {
    "f1": lambda text: text[::-1],
    "f2": lambda text: text[1:] + text[:1],
    "f3": lambda text: text[1] + text[0] + text[2:],
    "f4": lambda text: text[0] + text[2:] + text[1],
    "f5": lambda text: text[0] * len(text),
    "f6": lambda text: text[:-1] + text[0],
}


def composed(rng: random.Random, depth: int) -> Task:
    """Draws functions and three letters that they are applied to, the last function first.

    Args:
        depth: number of functions.
    """
    names, text = rng.choices(list(FUNCTIONS), k=depth), "".join(rng.choices("abc", k=3))
    steps = [text]
    for name in reversed(names):
        steps.append(FUNCTIONS[name](steps[-1]))
    term = f"{'('.join([*names, text])}{')' * depth}"
    return Task.of(term, f"{term}?", answer=steps[-1], steps=steps, depth=depth)


def each_step_changes(task: Task) -> bool:
    """Returns True if each function changes its string: without it the composition would have another answer."""
    steps = task.data["steps"]
    return all(before != after for before, after in itertools.pairwise(steps))


def oracle(task: Task, rng: random.Random) -> Iterator[Say]:
    """Answers with the last string."""
    yield Say(f"<answer>{task.data['answer']}</answer>")
