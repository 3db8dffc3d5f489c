"""Small programs: a formula of x with given values. A wrong one is run, explained and repaired."""

from __future__ import annotations

import ast
import itertools
import random
import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any

from agentrl import Message, Say, Session, Task
from agentrl.rewards.functions.verifiers import word_f1
from agentrl.tools.builtin.calculator import Calculator
from agentrl.types.episode import Episode
from agentrl.types.errors import ToolError

PROGRAMS = tuple(itertools.product((1, 2, 3), (1, 2)))


def formulas(n: int = 512, held_out: bool = False) -> Iterator[Task]:
    """Asks for `a * x + b`, of which two values are shown and five are tested; every fourth is held out."""
    rng = random.Random(0)
    for number in itertools.islice((k for k in itertools.count() if (k % 4 == 0) == held_out), n):
        a, b = rng.choice(PROGRAMS)
        shown = rng.sample(range(1, 10), 2)
        text = f"Write f. {' '.join(f'f({x}) = {a * x + b}.' for x in shown)}"
        tests = [[x, a * x + b] for x in (*shown, 11, 12, 13)]
        yield Task.of(f"f{number}", text, tests=tests, solution=f"{a} * x + {b}")


async def run(program: str, x: int) -> Any:
    """The value of a program at x; None for what is no formula."""
    if not re.fullmatch(r"[\dx+*/() .-]{1,60}", program):
        return None
    try:
        return ast.literal_eval(await Calculator().calculate(program.replace("x", f"({x})")))
    except (ToolError, ValueError, SyntaxError):
        return None


async def failures(program: str, tests: Sequence[Sequence[int]]) -> list[str]:
    """Of each test that a program fails: what it gave, and what is wanted."""
    found = [(x, await run(program, x), wanted) for x, wanted in tests]
    return [f"f({x}) is {given}, not {wanted}." for x, given, wanted in found if given != wanted]


async def tested(session: Session, answer: str) -> tuple[float, str]:
    """Score 1 if a program passes all tests, else 0; and the first failure."""
    failed = await failures(answer, session.task.data["tests"])
    return float(not failed), failed[0] if failed else ""


async def passed(task: Task, episode: Episode) -> float:
    """1 if the answer passes all tests, else 0."""
    return float(not await failures(episode.answer or "", task.data["tests"]))


async def explained(task: Task, episode: Episode, info: Mapping[str, Any]) -> float | None:
    """F1 of the words of the explanation before a repair and those of what running the wrong program showed."""
    tries = info.get("tries") or []
    if len(tries) < 2 or not tries[1]["turns"]:
        return None
    wrong = await failures(tries[0]["answer"], task.data["tests"])
    explanation = episode.turns[tries[1]["turns"][0]].text.partition("<answer>")[0]
    return word_f1(explanation, wrong[0]) if wrong else None


# --- scripts --------------------------------------------------------------------------------------------------------


def coder(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Writes one of the programs; then explains a wrong one with numbers that are often wrong, and writes another."""
    tried = rng.sample(PROGRAMS, len(PROGRAMS))
    explanation = ""
    for a, b in tried:
        yield Say(f"{explanation}<answer>{a} * x + {b}</answer>")
        x, wanted = rng.choice(task.data["tests"][:2])
        explanation = f"f({x}) is {rng.randint(1, 9)}, not {wanted}. "
