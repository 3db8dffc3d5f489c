"""Signs between numbers that reach a target, and searches that try wrong signs first."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence

from agentrl import Say, Task
from agentrl.types.episode import Episode


def puzzle(rng: random.Random, terms: int = 3) -> Task:
    """Draws numbers, and the value of one choice of signs between them."""
    numbers = [rng.randint(1, 9) for _ in range(terms)]
    signs = rng.choices("+-", k=terms - 1)
    target = value(numbers, signs)
    text = f"{' '.join(map(str, numbers))} = {target}"
    return Task.of(text.replace(" ", "_"), text, numbers=numbers, target=target)


def value(numbers: Sequence[int], signs: Sequence[str]) -> int:
    """Returns the value of the numbers with these signs between them."""
    return numbers[0] + sum(n if sign == "+" else -n for sign, n in zip(signs, numbers[1:], strict=True))


def written(numbers: Sequence[int], signs: Sequence[str]) -> str:
    """Returns the term: `3+4-2`."""
    return str(numbers[0]) + "".join(f"{sign}{n}" for sign, n in zip(signs, numbers[1:], strict=True))


def reached(task: Task, episode: Episode) -> float:
    """1 for the numbers in their order, with signs that reach the target."""
    numbers, target, said = task.data["numbers"], task.data["target"], (episode.answer or "").replace(" ", "")
    right = {written(numbers, signs) for signs in _choices(numbers) if value(numbers, signs) == target}
    return float(said in right)


def _choices(numbers: Sequence[int]) -> list[tuple[str, ...]]:
    return [*itertools.product("+-", repeat=len(numbers) - 1)]


def search(task: Task, rng: random.Random, backtracks: int) -> Iterator[Say]:
    """Tries so many wrong choices of signs, as far as there are some, and then the right one."""
    numbers, target = task.data["numbers"], task.data["target"]
    tried = rng.sample(_choices(numbers), 2 ** (len(numbers) - 1))
    wrong = [signs for signs in tried if value(numbers, signs) != target][:backtracks]
    right = next(signs for signs in tried if value(numbers, signs) == target)
    steps = [f"{written(numbers, signs)}={value(numbers, signs)} no." for signs in wrong]
    term = written(numbers, right)
    yield Say(f"<think>{' '.join([*steps, f'{term}={target} yes.'])}</think><answer>{term}</answer>")


def oracle(task: Task, rng: random.Random) -> Iterator[Say]:
    """Finds the signs at once."""
    yield from search(task, rng, 0)


def one(task: Task, rng: random.Random) -> Iterator[Say]:
    """Backtracks once."""
    yield from search(task, rng, 1)


def three(task: Task, rng: random.Random) -> Iterator[Say]:
    """Backtracks up to three times."""
    yield from search(task, rng, 3)
