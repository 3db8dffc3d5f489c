"""Symbolic equality of mathematical answers, compared in helper processes.

A pair of expressions can keep the algebra system busy for ever, and its own time limit needs SIGALRM, which only the
main thread of a process has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar

from agentrl.rewards.declare import Scored, reward
from agentrl.rewards.functions.answers.comparers import LONGEST, MATHS, said, then
from agentrl.rewards.functions.answers.symbolic import compare, readable, require_maths
from agentrl.rewards.functions.verifiers import METRICS, gold
from agentrl.sandbox.helper import TooMuch
from agentrl.types.episode import Episode
from agentrl.types.errors import TaskError
from agentrl.types.parts.content import text_of
from agentrl.types.task import Task


@reward(source="math-verify (huggingface/Math-Verify)", require=require_maths, bounds=(0, 1))
async def maths(
    task: Task,
    episode: Episode,
    *,
    key: str = "answer",
    form: Literal["any", "value"] = "any",
    digits: int = 6,
    timeout_s: float = 5.0,
) -> float | Scored:
    r"""1 if the answer equals a reference symbolically (`\frac12`, `0.5`, sets, intervals, equations), else 0.

    An answer that cannot be compared within the time scores 0: it must not pay to be incomparable. A formula copied
    verbatim from the question scores 0 too, unless it is the gold answer's own form; so does a number among several
    ("the answer is 5 or 6"), if the gold answer is one number.

    Args:
        form: `value` for tasks of computation: if the gold answer is a number, the answer has to be one, and not a
            formula of the same value (12, 3/4 and 50% are numbers, 3 + 4, 2^3 and 4! are formulas).
        key: field of `task.data` with the gold answer, LaTeX or plain.
        digits: numbers are rounded to this many digits before the comparison.
        timeout_s: processor time for one reference.

    Raises:
        MissingExtra: math-verify is not installed.
        TaskError: no gold answer, or none that can be read as mathematics in that time.
    """
    require_maths()
    references, answer = gold(task, key), said(episode) or ""
    if not answer.strip():
        return 0.0
    if len(answer) > LONGEST:
        return Scored(0.0, f"an answer of {len(answer)} characters")
    verdicts, note = [], ""
    question = "\n".join(text_of(message.get("content") or "") for message in task.instruction)
    for reference in references:
        asked = (reference, answer, digits, form == "value", question)
        try:
            verdicts.append(await MATHS.ask(compare, *asked, cpu_s=timeout_s))
        except TooMuch as problem:
            note = str(problem)
            if not await _readable(reference, timeout_s):
                verdicts.append("no gold")
    if len(verdicts) == len(references) and all(verdict == "no gold" for verdict in verdicts):
        raise TaskError(f"{key!r} cannot be read as mathematics: {references[0]!r}", place=f"task {task.id}")
    if "equal" in verdicts:
        return 1.0
    note = next((verdict for verdict in verdicts if verdict not in ("different", "no gold")), note)
    return Scored(0.0, note) if note else 0.0


async def _readable(reference: str, timeout_s: float) -> bool:
    """Returns True if a gold answer can be parsed within the time."""
    try:
        return bool(await MATHS.ask(readable, reference, cpu_s=timeout_s))
    except TooMuch:
        return False


Metric = Literal["exact_match", "f1", "numeric", "maths"]
"""The metric of rewards that use correctness."""

T = TypeVar("T")


def with_correctness(metric: Metric, task: Task, episode: Episode, key: str, follows: Callable[[float], T]) -> T:
    """Applies `follows` to the correctness of an answer. Returns an awaitable with the metric `maths`.

    Raises:
        TaskError: no gold answer, or none that can be read.
    """
    if metric == "maths":
        value: Any = _maths(task, episode, key)
    else:
        value = METRICS[metric](task, episode, key=key)
    return then(value, follows)


async def _maths(task: Task, episode: Episode, key: str) -> float:
    """1 if the answer is right, as `maths` compares it, else 0."""
    found = await maths(task, episode, key=key)
    value = found.value if isinstance(found, Scored) else found
    return value if isinstance(value, float) else 0.0
