"""Raw text about sums: pages that state them, and questions with a long thought and an answer."""

from __future__ import annotations

import random
from collections.abc import Iterator

PAGES, WORKED = 4096, 512


def pages() -> Iterator[str]:
    """Pages of a few sums, with words between them, without questions."""
    for k in range(PAGES):
        rng = random.Random(f"page {k}")
        told = [_sentence(rng.randint(1, 30), rng.randint(1, 9), rng) for _ in range(rng.randint(2, 5))]
        yield " ".join(told)


def _sentence(one: int, other: int, rng: random.Random) -> str:
    form = rng.choice(["{a} + {b} = {c}.", "{a} and {b} make {c}.", "{c} is {a} + {b}.", "Take {b} from {c}: {a}."])
    return form.format(a=one, b=other, c=one + other)


def worked() -> Iterator[str]:
    """Questions, each with the sums of a thought, which is checked, and the answer."""
    for k in range(WORKED):
        rng = random.Random(f"worked {k}")
        numbers = [rng.randint(1, 9) for _ in range(rng.randint(2, 4))]
        total, steps = numbers[0], []
        for number in numbers[1:]:
            steps.append(f"{total} + {number} = {total + number}.")
            total += number
        asked = " + ".join(map(str, numbers))
        thought = " ".join([*steps, "Again:", *steps])
        yield f"What is {asked}?\n<think>{thought}</think><answer>{total}</answer>"
