"""Questions to an agent that is a program, agent.py, with a tool of its own, and the right answer."""

from __future__ import annotations

import random
from collections.abc import Iterator

from agentrl import Say, Task

ARTICLES = ("pen", "cup", "box", "hat", "bag", "jar", "key", "map")


def questions(n: int = 64, split: str = "train") -> Iterator[Task]:
    """Yields tasks; each `split` has prices of its own."""
    for k in range(n):
        rng = random.Random(f"{split} {k}")
        first, second = rng.sample(ARTICLES, 2)
        prices = dict(zip(ARTICLES, rng.sample(range(1, 20), len(ARTICLES)), strict=True))
        yield Task.of(
            f"{split}{k}",
            f"Which is cheaper, the {first} or the {second}?",
            articles=[first, second],
            prices=" ".join(f"{article}={price}" for article, price in prices.items()),
            answer=min(first, second, key=prices.__getitem__),
        )


def oracle(task: Task, rng: random.Random) -> Iterator[Say]:
    """Solves every task: it speaks in the model's place, through the program."""
    for article in task.data["articles"]:
        yield Say(calls=[("price", {"article": article})])
    yield Say(task.data["answer"])
