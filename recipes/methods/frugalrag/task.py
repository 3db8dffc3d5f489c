"""FrugalRAG's first stage: demonstrations of an agent that searches until its budget is spent."""

from __future__ import annotations

import random
from collections.abc import Generator

from agentrl.engines.scripted import Say
from agentrl.types.task import Message, Task

BUDGET = 5
"""Searches of a demonstration: `max_searches` of the reward."""


def explorer(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Makes the searches that the question needs, goes on with others until the budget is spent, and answers."""
    needed = [hop["query"] for hop in task.data["hops"]]
    asked = str(task.instruction[-1]["content"]).rstrip("?").split()
    for search in range(BUDGET):
        query = needed[search] if search < len(needed) else " ".join(rng.sample(asked, min(2, len(asked))))
        yield Say(calls=[("search", {"query": query})])
    yield Say(calls=[("answer", {"text": task.data["answer"][0]})])
