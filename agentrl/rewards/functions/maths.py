"""Symbolic equality of mathematical answers, compared in helper processes.

A pair of expressions can keep the algebra system busy for ever, and its own time limit needs SIGALRM, which only the
main thread of a process has.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from agentrl.rewards.declare import Scored, reward
from agentrl.rewards.functions.comparers import MATHS, said
from agentrl.rewards.functions.verifiers import gold
from agentrl.rewards.helper import TooMuch
from agentrl.types.episode import Episode
from agentrl.types.errors import TaskError, needs
from agentrl.types.task import Task

_LONGEST = 20_000  # characters of an answer


def require_maths(_: Mapping[str, Any] = {}) -> None:  # it is not changed
    """Checks that math-verify is installed.

    Raises:
        MissingExtra: it is not.
    """
    with needs("maths"):
        import math_verify  # noqa: F401


async def correctness(task: Task, episode: Episode, key: str) -> float:
    """1 if the answer is right, as `maths` compares it, else 0."""
    found = await maths(task, episode, key=key)
    value = found.value if isinstance(found, Scored) else found
    return value if isinstance(value, float) else 0.0


@reward(source="math-verify (huggingface/Math-Verify)", require=require_maths)
async def maths(
    task: Task, episode: Episode, *, key: str = "answer", digits: int = 6, timeout_s: float = 5.0
) -> float | Scored:
    r"""1 if the answer equals a reference symbolically (`\frac12`, `0.5`, sets, intervals, equations), else 0.

    An answer that cannot be compared within the time scores 0: it must not pay to be incomparable.

    Args:
        key: where in `task.data` the gold answer is, LaTeX or plain.
        digits: numbers are compared after rounding to so many.
        timeout_s: processor time for one reference.

    Raises:
        MissingExtra: math-verify is not installed.
        TaskError: no gold answer, or none that can be read as mathematics in that time.
    """
    require_maths()
    references, answer = gold(task, key), said(episode) or ""
    if not answer.strip():
        return 0.0
    if len(answer) > _LONGEST:
        return Scored(0.0, f"an answer of {len(answer)} characters")
    verdicts, note = [], ""
    for reference in references:
        try:
            verdicts.append(await MATHS.ask(compare, reference, answer, digits, cpu_s=timeout_s))
        except TooMuch as problem:
            note = str(problem)
            if not await _readable(reference, timeout_s):
                verdicts.append("no gold")
    if len(verdicts) == len(references) and all(verdict == "no gold" for verdict in verdicts):
        raise TaskError(f"{key!r} cannot be read as mathematics: {references[0]!r}", place=f"task {task.id}")
    if "equal" in verdicts:
        return 1.0
    return Scored(0.0, note) if note else 0.0


async def _readable(reference: str, timeout_s: float) -> bool:
    """Whether a gold answer can be read at all within the time."""
    try:
        return bool(await MATHS.ask(readable, reference, cpu_s=timeout_s))
    except TooMuch:
        return False


# In the helper


def prepare() -> None:
    """Imports the algebra system, which takes a second on a slow machine."""
    compare("1", "1", 6)


def compare(reference: str, answer: str, digits: int) -> str:
    """`equal`, `different` or `no gold`."""
    from math_verify import parse, verify

    wanted = said = None
    # No time limit of its own (None): a limit would swallow the difference between unequal and undecided.
    with suppress(Exception):
        wanted = parse(_delimited(reference), parsing_timeout=None) or parse(reference, parsing_timeout=None)
    with suppress(Exception):  # what an answer makes the parser raise is the answer's fault
        said = parse(answer, parsing_timeout=None) or parse(_delimited(answer), parsing_timeout=None)
    equal = False
    with suppress(Exception):
        equal = bool(wanted and said) and verify(wanted, said, float_rounding=digits, timeout_seconds=None)
    return "no gold" if not wanted else "equal" if equal else "different"


def readable(reference: str) -> bool:
    """Whether it is mathematics."""
    return compare(reference, "", 6) != "no gold"


def _delimited(text: str) -> str:
    r"""Bare LaTeX (`\frac{1}{2}`) is only found between delimiters."""
    return text if "$" in text or "\\boxed" in text or "\\(" in text else f"${text}$"
