"""Makes and grades puzzles of reasoning-gym; runs in a helper process, for some graders evaluate the answer."""

from __future__ import annotations

import re
import zlib
from functools import cache
from typing import Any

SIZE = 1000  # puzzles of a data set

_NUMBERS = r"[\d\s,\[\]]*"

EVALUATED = {
    "binary_matrix": _NUMBERS,
    "spiral_matrix": _NUMBERS,
    "n_queens": r"[_Q\s]*",
    "string_insertion": r"[A-E]*",
}
"""What an answer may consist of, where the grader of the package hands it to Python's `eval`."""


@cache
def dataset(kind: str, seed: int) -> Any:
    """A data set of the package."""
    import reasoning_gym

    return reasoning_gym.create_dataset(kind, seed=seed, size=SIZE)


def puzzle(kind: str, seed: int, number: int) -> tuple[str, str]:
    """A puzzle's question, and the answer of the package."""
    found = dataset(kind, seed)[number]
    return found["question"], str(found["answer"])


def score(kind: str, seed: int, number: int, asked: int, answer: str) -> float:
    """What the package's grader gives, 0 to 1. An answer that it raises on gets 0, if it can grade its own answer.

    Args:
        asked: `digest` of the question: another version of the package makes another one.

    Raises:
        ValueError: it does.
        Exception: the grader raises on the package's own answer, too: it is broken.
    """
    entry = dataset(kind, seed)[number]
    if digest(entry["question"]) != asked:
        raise ValueError(f"{kind} {seed}/{number} is another puzzle in this version of reasoning-gym")
    if kind in EVALUATED and not re.fullmatch(EVALUATED[kind], answer):
        return 0.0
    try:
        return min(1.0, max(0.0, float(dataset(kind, seed).score_answer(answer, entry))))
    except Exception:
        dataset(kind, seed).score_answer(entry["answer"], entry)
        return 0.0


def digest(question: str) -> int:
    """Of a question's text; the same in every process."""
    return zlib.crc32(question.encode())
