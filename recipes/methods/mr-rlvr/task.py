"""Exercises that are made of worked solutions: fill in what is masked, order the steps; and the sums themselves."""

from __future__ import annotations

import random
from collections.abc import Iterator

from agentrl import Say, Task
from agentrl.types.episode import Episode

LETTERS = "ABC"


def exercise(rng: random.Random, kind: str) -> Task:
    """Draws a sum of three or four numbers below ten, and makes an exercise of its solution.

    Args:
        kind: `fill`: a number of a step is masked; `order`: the steps are shuffled; `solve`: the sum alone.
    """
    numbers = [rng.randint(1, 9) for _ in range(rng.choice([3, 4]))]
    steps = solution(numbers)
    if kind == "fill":
        at, place = rng.randrange(len(steps)), rng.choice([0, 2, 4])
        words = steps[at].split()
        gold, words[place] = words[place], "?"
        text = "; ".join(" ".join(words) if k == at else step for k, step in enumerate(steps))
    elif kind == "order":
        order = rng.sample(range(len(steps)), len(steps))
        text = "; ".join(f"{letter} {steps[k]}" for letter, k in zip(LETTERS, order, strict=False))
        gold = "".join(LETTERS[order.index(k)] for k in range(len(steps)))
    else:
        text, gold = " + ".join(map(str, numbers)), steps[-1].split()[-1]
    return Task.of(f"{kind}:{text}".replace(" ", ""), text, answer=gold, kind=kind)


def solution(numbers: list[int]) -> list[str]:
    """Returns the steps of a sum: `2 + 3 = 5`, `5 + 4 = 9`."""
    steps, so_far = [], numbers[0]
    for number in numbers[1:]:
        steps.append(f"{so_far} + {number} = {so_far + number}")
        so_far += number
    return steps


def alike(task: Task, episode: Episode) -> float:
    """Share of the characters that are right, each in its place: digits of a number, or steps of an order."""
    said, gold = (episode.answer or "").strip(), str(task.data["answer"])
    return sum(a == b for a, b in zip(said, gold, strict=False)) / max(len(said), len(gold))


def oracle(task: Task, rng: random.Random) -> Iterator[Say]:
    """Answers."""
    yield Say(f"<answer>{task.data['answer']}</answer>")


def guesser(task: Task, rng: random.Random) -> Iterator[Say]:
    """Answers one time in two; else with the same characters in another order, or a number near by."""
    gold = str(task.data["answer"])
    near = str(int(gold) + rng.choice([-1, 1, 2])) if gold.isdigit() else "".join(rng.sample(gold, len(gold)))
    yield Say(f"<answer>{gold if rng.random() < 0.5 else near}</answer>")
