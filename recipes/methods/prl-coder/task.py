"""Programs of three lines that turn one number into another; every line is labelled by execution."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator
from functools import cache

from agentrl import Say, Task
from agentrl.rewards import Span
from agentrl.types.episode import Episode, Turn

LINES = ("x += 1", "x += 3", "x *= 2", "x *= 3")
LENGTH = 3


def programs(n: int, held_out: bool = False) -> Iterator[Task]:
    """Asks for a program from one number to another, which some program reaches; every fourth pair is held out."""
    pairs = [(x, run(x, lines)) for x in range(1, 10) for lines in itertools.product(LINES, repeat=LENGTH)]
    split = [pair for k, pair in enumerate(sorted(set(pairs))) if (k % 4 == 0) == held_out]
    for k, (x, target) in enumerate(random.Random(0).choices(split, k=n)):
        yield Task.of(f"{k}:{x}-{target}", f"{x} to {target}", x=x, target=target)


def run(x: int, lines: tuple[str, ...]) -> int:
    """The number after some lines."""
    for line in lines:
        x = x + int(line[-1]) if "+" in line else x * int(line[-1])
    return x


@cache
def solutions(x: int, target: int, left: int = LENGTH) -> list[tuple[str, ...]]:
    """The programs of `left` lines from one number to another."""
    return [lines for lines in itertools.product(LINES, repeat=left) if run(x, lines) == target]


def passed(task: Task, episode: Episode) -> float:
    """1 if the program has three lines and ends with the number, else 0."""
    written = tuple((episode.answer or "").strip().split("\n"))
    return float(written in solutions(task.data["x"], task.data["target"]))


def lines(task: Task, turn: Turn) -> list[Span]:
    """1 for each line after which the number can still be reached in the lines that are left, else -1."""
    spans, before = [], ()
    for found in re.finditer(r"[^\n]+", turn.text):
        before = (*before, found[0].strip())
        right = any(each[: len(before)] == before for each in solutions(task.data["x"], task.data["target"]))
        spans.append(Span(*found.span(), 1.0 if right else -1.0))
    return spans


def oracle(task: Task, rng: random.Random) -> Iterator[Say]:
    """Writes a program that passes."""
    yield Say("\n".join(rng.choice(solutions(task.data["x"], task.data["target"]))))


def guesser(task: Task, rng: random.Random) -> Iterator[Say]:
    """Writes a program that passes; half of the time one of its lines is replaced by a random one."""
    written = [*rng.choice(solutions(task.data["x"], task.data["target"]))]
    if rng.random() < 0.5:
        written[rng.randrange(LENGTH)] = rng.choice(LINES)
    yield Say("\n".join(written))
