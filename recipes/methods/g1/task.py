"""Questions about random graphs, whose answers are computed."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence

from agentrl import Say, Task

Edge = tuple[int, int]
ASKED = {"degree": "Degree of {a}?", "connected": "Path from {a} to {b}?", "distance": "Distance from {a} to {b}?"}
GUESSES = {"degree": "0123", "connected": ["yes", "no"], "distance": "01234"}


def question(rng: random.Random, kind: str, nodes: int) -> Task:
    """Draws a graph, each edge with probability 1/2, and a question about it.

    Args:
        kind: `degree` of a node; whether two are `connected`; their `distance` in edges, or none.
    """
    edges = [edge for edge in itertools.combinations(range(nodes), 2) if rng.random() < 0.5]
    a, b = rng.sample(range(nodes), 2)
    text = f"{' '.join(f'{i}-{j}' for i, j in edges) or 'no edges'}. {ASKED[kind].format(a=a, b=b)}"
    return Task.of(text.replace(" ", "_"), text, answer=answer(kind, edges, a, b), kind=kind)


def answer(kind: str, edges: Sequence[Edge], a: int, b: int) -> str:
    """Returns the answer to a question."""
    if kind == "degree":
        return str(sum(a in edge for edge in edges))
    far = distance(edges, a, b)
    if kind == "connected":
        return "no" if far is None else "yes"
    return "none" if far is None else str(far)


def distance(edges: Sequence[Edge], a: int, b: int) -> int | None:
    """Returns the number of edges of the shortest path; None: there is none."""
    seen, border, steps = {a}, {a}, 0
    while border and b not in border:
        border = {j for edge in edges for i, j in (edge, edge[::-1]) if i in border} - seen
        seen |= border
        steps += 1
    return steps if b in border else None


def oracle(task: Task, rng: random.Random) -> Iterator[Say]:
    """Answers."""
    yield Say(f"<answer>{task.data['answer']}</answer>")


def guesser(task: Task, rng: random.Random) -> Iterator[Say]:
    """Answers one time in two, and else guesses: shows the form."""
    guess = rng.choice(GUESSES[task.data["kind"]])
    yield Say(f"<answer>{task.data['answer'] if rng.random() < 0.5 else guess}</answer>")
