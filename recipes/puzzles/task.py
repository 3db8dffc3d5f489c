"""Puzzles of reasoning-gym: every generator whose grader can be trusted."""

from __future__ import annotations

import functools
import hashlib
import itertools
import random
from collections.abc import Generator, Iterator, Sequence
from importlib import util
from pathlib import Path
from typing import Any

from agentrl import Environment, Message, Observation, Say, Task
from agentrl.chat.formats.parser import Reply
from agentrl.registry.references import load_object
from agentrl.sandbox.helper import Helper, TooMuch
from agentrl.types.errors import TaskError

HERE = Path(__file__).parent
PACKAGE = "reasoning-gym==0.1.25"
make = load_object("./grade.py:puzzle", HERE)
digest = load_object("./grade.py:digest", HERE)
SIZE = load_object("./grade.py:SIZE", HERE)
grade = load_object("./grade.py:score", HERE)

BLOCKED = {
    "arc_agi": "questions of 12,000 characters",
    "boxnet": "the grader gives 0 to its own answer",
    "codeio": "the same seed gives other puzzles",
    "composite": "needs a configuration",
    "countdown": "half a second of processor time each",
    "futoshiki": "seconds of processor time each",
    "game_of_life_halting": "the grader gives 1 to nonsense",
    "graph_color": "the grader gives 0 to its own answer",
    "intermediate_integration": "the grader runs the answer as Python",
    "isomorphic_strings": "every process makes other puzzles of a seed (the order of a set)",
    "knight_swap": "seconds of processor time each",
    "polynomial_multiplication": "the grader runs the answer as Python",
    "propositional_logic": "the grader gives 0 to its own answer",
    "puzzle24": "seconds of processor time each",
    "ransom_note": "every process makes other puzzles of a seed (the order of a set)",
    "rectangle_count": "questions of 6,800 characters",
    "rubiks_cube": "the grader gives 0.01 to its own answer",
    "rush_hour": "the grader gives 0.01 to its own answer",
    "simple_integration": "the grader runs the answer as Python",
    "sokoban": "seconds of processor time each",
    "zebra_puzzles": "seconds of processor time each",
}
"""Generators that are left out, and why. What was tried: README.md."""

EASY = (
    "basic_arithmetic", "chain_sum", "count_bits", "lcm", "letter_counting", "number_filtering",
    "products", "simple_equations", "spell_backward", "base_conversion", "fraction_simplification", "gcd",
)  # fmt: skip
"""Kinds with short questions and answers."""


def puzzles(
    n: int = 512, seed: int = 0, held_out: bool = False, kinds: Sequence[str] | None = None, easy: bool = False
) -> Iterator[Task]:
    """`n` puzzles, every kind in turn. A smaller `n` gives the beginning of the same list.

    Args:
        seed: another one gives other puzzles.
        held_out: the one eighth of the puzzles (by a hash of the question) that is for evaluation, not the rest.
        kinds: names of generators; default: all that are not blocked.
        easy: those of `EASY`.

    Raises:
        TaskError: reasoning-gym is not installed, or one of the kinds is blocked or unknown.
    """
    names = _kinds(kinds if kinds is not None else EASY if easy else None)
    dealt = (one for row in itertools.zip_longest(*(_pool(kind, seed, held_out) for kind in names)) for one in row)
    yield from itertools.islice((one for one in dealt if one is not None), n)


def _kinds(asked: Sequence[str] | None) -> list[str]:
    if util.find_spec("reasoning_gym") is None:
        raise TaskError("reasoning-gym is not installed", remedy=f"pip install {PACKAGE}")
    from reasoning_gym.factory import DATASETS

    usable = [name for name in sorted(DATASETS) if name not in BLOCKED]
    for name in asked or ():
        if name not in usable:
            raise TaskError(
                f"no puzzles {name!r}: {BLOCKED.get(name, 'no such generator')}", remedy=f"there are {usable}"
            )
    return list(asked or usable)


def _pool(kind: str, seed: int, held_out: bool) -> Iterator[Task]:
    seen: set[int] = set()
    for number in range(SIZE):
        base = 1_000_000 * (seed + 1)  # the package seeds puzzle i with seed + i
        question, answer = make(kind, base, number)
        key = digest(question)
        if key in seen or (key % 8 == 0) != held_out:
            continue
        seen.add(key)
        puzzle = {"kind": kind, "seed": base, "number": number, "asked": key}
        yield Task.of(f"{kind}/{seed}/{number}", question, puzzle=puzzle, answer=answer)


class Table(Environment):
    """Takes answers.

    Args:
        tries: answers that may be given; a wrong one, but for the last, is told to be wrong.
    """

    timeout_s = 300.0  # the first answer waits for helper processes that import the package

    def __init__(self, tries: int = 1) -> None:
        self.tries = tries

    def open(self, task: Task, sandbox: object) -> None:
        self.task, self.given = task, []
        self.info["score"] = 0.0

    def tools(self) -> list[Any]:
        return []

    async def respond(self, reply: Reply) -> Observation:
        answer = (reply.answer if reply.answer is not None else reply.text).strip()
        self.given.append(answer)
        self.info["score"] = await _score(self.task, answer)
        done = self.info["score"] >= 1.0 or len(self.given) >= self.tries
        return Observation("" if done else "That is not right. Try again.", done=done, answer=answer)

    def state_key(self) -> str:
        return hashlib.sha256("\0".join([self.task.id, *self.given]).encode()).hexdigest()[:16]


@functools.cache
def _helper() -> Helper:
    return Helper(str(HERE / "grade.py"), memory_mb=3072)


async def _score(task: Task, answer: str) -> float:
    puzzle = task.data["puzzle"]
    asked = [puzzle[name] for name in ("kind", "seed", "number", "asked")]
    try:
        return float(await _helper().ask(grade, *asked, answer, cpu_s=20.0))
    except TooMuch:
        return 0.0


def score(info: dict[str, Any]) -> float:
    """What the package's grader gave the last answer, 0 to 1."""
    return float(info.get("score", 0.0))


# --- scripts --------------------------------------------------------------------------------------------------------


def oracle(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Gives the answer of the package."""
    yield Say(f"<answer>{task.data['answer']}</answer>")


def random_agent(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Gives a word of the question."""
    words = " ".join(str(message["content"]) for message in task.instruction).split()
    while True:
        yield Say(f"<answer>{rng.choice(words)}</answer>")


def empty(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Says nothing."""
    yield Say()


def junk(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Gives wrong answers."""
    while True:
        yield Say(f"<answer>{rng.choice(['nonsense', '', 'None', '...', '{}', '中'])}</answer>")
