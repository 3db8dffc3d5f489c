"""Seeds for made-up questions, and a script that makes them up."""

from __future__ import annotations

import random
from collections.abc import Generator, Iterator
from pathlib import Path

from agentrl.engines.scripted import Say
from agentrl.registry.references import load_object
from agentrl.types.task import Message, Task

_FICTION = "../../search-qa/fiction.py"
_questions = load_object(f"{_FICTION}:questions", Path(__file__).parent)
_spoken = load_object(f"{_FICTION}:RELATIONS", Path(__file__).parent)


def seeds(n: int = 512, seed: int = 1, k: int = 5, **args: object) -> Iterator[Task]:
    """Entities to explore from. The chain of documents in the data is for the script alone."""
    for task in _questions(n=n, seed=seed, k=k, hops=3):
        hops, gold = task.data["hops"], task.data["gold"]
        asked = f"Explore from: {hops[0]['query']}"
        yield Task.of(f"seed/{task.id}", asked, hops=hops, gold=gold)


def explorer(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Follows the chain from the seed. Its question tells all of the chain at first, and less in every round."""
    hops, chain = task.data["hops"], task.id.split("/")[1].split("-")
    for hop in hops:
        yield Say(calls=[("search", {"query": hop["query"]})])
    answer = hops[-1]["expect"][0]
    for told in (2, 1, 0):
        asked = hops[told]["query"]
        for relation in chain[told:]:
            asked = _spoken[relation].format(asked)
        known = [f"{_spoken[chain[at]].format(hops[at]['query'])} is {hops[at]['expect'][0]}" for at in range(told)]
        question = "".join(f"{each[0].upper()}{each[1:]}. " for each in known) + f"What is {asked}?"
        yield Say(calls=[("propose", {"question": question, "answer": answer})])
