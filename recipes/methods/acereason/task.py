"""Sums to compute, and programs to write that print them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Literal

from agentrl import Say, Task


def problems(domain: Literal["maths", "code", "both"] = "maths", highest: int = 5) -> Iterator[Task]:
    """Sums of two numbers from 1 to `highest`; of both domains in turn."""
    for a in range(1, highest + 1):
        for b in range(1, highest + 1):
            both = {"answer": str(a + b), "tests": [{"input": "", "output": str(a + b)}], "terms": [a, b]}
            if domain != "code":
                yield Task.of(f"maths-{a}-{b}", f"What is {a} + {b}?", source="maths", **both)
            if domain != "maths":
                yield Task.of(f"code-{a}-{b}", f"Write Python that prints {a} + {b}.", source="code", **both)


def oracle(task: Task, rng: random.Random) -> Iterator[Say]:
    """The right answer."""
    a, b = task.data["terms"]
    yield Say(f"<answer>{a + b if task.data['source'] == 'maths' else f'print({a} + {b})'}</answer>")


def guesser(task: Task, rng: random.Random) -> Iterator[Say]:
    """An answer of the right form: right half of the time."""
    a, b = task.data["terms"]
    sign = rng.choice("+-")
    yield Say(f"<answer>{a + b if sign == '+' else a - b}</answer>" if task.data["source"] == "maths"
              else f"<answer>print({a} {sign} {b})</answer>")  # fmt: skip
