"""Problems that a model solves with a Python: it thinks, runs programs, reads what they print, and answers."""

from __future__ import annotations

import hashlib
import itertools
import random
import re
import zlib
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

from agentrl import Message, Say, Task, tool
from agentrl.registry.references import load_object
from agentrl.tools.builtin.python import Python
from agentrl.tools.words import Word
from agentrl.types.sandbox import Sandbox

KINDS = load_object("./problems.py:KINDS", Path(__file__).parent)


def problems(
    n: int = 512,
    seed: int = 0,
    held_out: bool = False,
    level: str | None = None,
    kinds: Sequence[str] | None = None,
) -> Iterator[Task]:
    """`n` problems, every kind in turn. A smaller `n` gives the beginning of the same list.

    Args:
        seed: another one gives other numbers.
        held_out: the one eighth of the problems (by a hash of their text) that is for evaluation, not the rest.
        level: `easy`, `medium` or `hard`; default: all.
        kinds: names of functions of `problems.py`; default: all of the level.
    """
    known = [kind.__name__ for kind in KINDS]
    if unknown := {*(kinds or ())} - {*known}:
        raise ValueError(f"no kinds {sorted(unknown)}; there are {', '.join(known)}")
    dealt = [kind for kind, of in KINDS.items() if level in (None, of) and kind.__name__ in (kinds or known)]
    if not dealt:
        raise ValueError(f"no level {level!r}; there are easy, medium and hard")
    pools = [_pool(kind, seed, held_out) for kind in dealt]
    yield from itertools.islice((next(pool) for pool in itertools.cycle(pools)), n)


def _pool(kind: Any, seed: int, held_out: bool) -> Iterator[Task]:
    seen: set[int] = set()
    for number in itertools.count():
        problem = kind(random.Random(f"{seed} {kind.__name__} {number}"))
        key = zlib.crc32(problem.text.encode())
        # Small kinds come round again after a while, under another number.
        if (key % 8 == 0) == held_out and (key not in seen or number > 20_000):
            seen.add(key)
            yield Task.of(
                f"{kind.__name__}/{seed}/{number}",
                problem.text,
                answer=problem.answer,
                code=problem.code,
                level=KINDS[kind],
            )


class Cells(Python):
    """A Python whose state is the programs that it has run, and what they showed."""

    async def open(self, task: Task, sandbox: Sandbox | None) -> None:
        """Takes a kernel of its own."""
        await super().open(task, sandbox)
        self._state = hashlib.sha256()

    @tool
    async def python(self, code: Word) -> str:
        """Run Python code. Variables are kept from call to call; the value of a last expression is shown.

        Args:
            code: one or more statements.
        """
        shown = await super().python(code)
        self._state.update(f"{code}\0{shown}\0".encode())
        return shown

    def state_key(self) -> str:
        return self._state.hexdigest()[:16]


# --- scripts --------------------------------------------------------------------------------------------------------


def oracle(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Runs the program and answers with what it prints, not with the stored answer: both must agree."""
    seen = yield Say(calls=[("python", {"code": task.data["code"]})])
    yield Say(f"<answer>{str(seen[-1]['content']).strip()}</answer>")


def clerk(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Has a calculator compute what a problem of the kind `sums` asks for, and answers with the result."""
    yield from _calculated(task.data["code"].removeprefix("print(").removesuffix(")"))


def guesser(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """The same, but in any of the forms of these problems: right one time in four.

    Shows how to compute and how numbers are copied; that the form matters has to be found out.
    """
    form = rng.choice(["{} + {} * {}", "({} + {}) * {}", "{} * {} - {}", "({} - {}) * {}"])
    yield from _calculated(form.format(*re.findall(r"\d+", task.data["code"])))


def _calculated(expression: str) -> Generator[Say, list[Message], None]:
    seen = yield Say(calls=[("calculate", {"expression": expression})])
    yield Say(f"<answer>{seen[-1]['content']}</answer>")


def in_the_head(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Answers with the stored answer and no program: the reward does not ask how."""
    yield Say(f"<answer>{task.data['answer']}</answer>")


def forge_echo(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Answers with the longest formula of the question."""
    formulas = re.findall(r"[0-9(][0-9+*/!() -]*[0-9)!]", str(task.instruction[-1]["content"]))
    yield Say(f"<answer>{max(formulas, key=len, default='')}</answer>")


def random_agent(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Adds or multiplies two numbers of the text."""
    numbers = re.findall(r"\d+", str(task.instruction[-1]["content"])) or ["1"]
    a, b = rng.choice(numbers), rng.choice(numbers)
    seen = yield Say(calls=[("python", {"code": f"print({a} {rng.choice('+*-')} {b})"})])
    yield Say(f"<answer>{str(seen[-1]['content']).strip()}</answer>")


def empty(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Says nothing."""
    yield Say()


def junk(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Runs what is no program, and answers with what is no number of this problem."""
    yield Say(calls=[("python", {"code": rng.choice(["", "import", "1/0", "print('yes')"])})])
    yield Say(f"<answer>{rng.choice(['yes', '', '-1234567', 'x + y', '()', '10^100'])}</answer>")
