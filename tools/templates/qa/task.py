"""Questions with one correct answer, in train.jsonl and test.jsonl, and a tool to compute it."""

from __future__ import annotations

import random
from collections.abc import Iterator

from agentrl import Say, Task, tool


@tool
def add(a: int, b: int) -> int:
    """Add two whole numbers.

    Args:
        a: the first.
        b: the second.
    """
    return a + b


def oracle(task: Task, rng: random.Random) -> Iterator[Say]:
    """Solves every task."""
    yield Say(calls=[("add", {"a": task.data["a"], "b": task.data["b"]})])
    yield Say(f"<answer>{task.data['answer']}</answer>")
