"""Built-in reward components.

The first three compare `episode.answer` with a gold answer in `task.data`. An episode without an answer gets 0. A task
without a gold answer is an error of the data set.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

from agentrl.rewards.declare import reward
from agentrl.rewards.functions.answers.comparers import (
    TOLERANCE,
    Comparer,
    among,
    equal_numbers,
    last_number,
    normalise,
    said,
    then,
)
from agentrl.types.episode import Episode, Turn
from agentrl.types.errors import TaskError
from agentrl.types.task import Task


@reward(bounds=(0, 1))
def exact_match(task: Task, episode: Episode, *, key: str = "answer", comparer: Comparer = "squad") -> float:
    """1 if the answer equals one of the references, else 0. A confidence in it (RLCR) is not compared.

    Args:
        key: field of `task.data` with the gold answer, a string or a list of them.
        comparer: `squad`: after SQuAD normalisation, and numbers as numbers; `exact`; `numeric`; `maths`.
    """
    references, answer = gold(task, key), said(episode)
    return then(answer is not None and among(answer, references, comparer), float)


@reward(bounds=(0, 1))
def f1(task: Task, episode: Episode, *, key: str = "answer") -> float:
    """F1 of the words that answer and reference share (SQuAD v1.1), for the best reference."""
    references, answer = gold(task, key), said(episode)
    return 0.0 if answer is None else max(word_f1(answer, reference) for reference in references)


@reward(bounds=(0, 1))
def numeric(task: Task, episode: Episode, *, key: str = "answer", tolerance: float = TOLERANCE) -> float:
    """1 if the last number of the answer is that of one of the references, else 0.

    `1,000`, `.5`, `-2e3`, `3/4`, `\\frac{3}{4}` and `50%` are numbers. A percent sign may be left out or written out on
    either side: 50% equals both 0.5 and 50, and of percentages only itself.

    Args:
        tolerance: the two may differ by tolerance * max(1, |gold|).

    Raises:
        TaskError: a reference holds no number.
    """
    references = {reference: last_number(reference) for reference in gold(task, key)}
    for reference, numbers in references.items():
        if not numbers:
            raise TaskError(f"{key!r} holds no number: {reference!r}", place=f"task {task.id}")
    answer = last_number(said(episode) or "")
    return float(any(equal_numbers(answer, numbers, tolerance) for numbers in references.values()))


@reward(bounds=(0, 1))
def format(episode: Episode, *, needs_answer: bool = True) -> float:
    """Share of the turns whose calls could all be parsed; 0 if the episode ended without an answer.

    Args:
        needs_answer: False for tasks that a tool call ends, not an answer.
    """
    turns = episode.own_turns
    if not turns or (needs_answer and not (episode.answer or "").strip()):
        return 0.0
    return sum(turn.valid for turn in turns) / len(turns)


def tool_success(episode: Episode) -> float | None:
    """Share of the tool calls that succeeded; None without calls."""
    calls = [call for turn in episode.own_turns for call in turn.calls]
    return sum(call.outcome == "ok" for call in calls) / len(calls) if calls else None


@reward(source="IGPO, arXiv:2510.14967 (wrong: -2); DeepResearcher, arXiv:2504.03160 (wrong: -1)")
def format_f1(task: Task, episode: Episode, *, wrong: float = -1.0, key: str = "answer") -> float:
    """Returns `f1` of the answer; `wrong` for an episode with no answer, or with a call that does not parse.

    Args:
        wrong: the value of an episode with a wrong format.
        key: field of `task.data` with the gold answer, a string or a list of them.
    """
    return f1(task, episode, key=key) if format(episode) == 1.0 else wrong


def turn_format(turn: Turn) -> float:
    """1 for every turn whose calls could all be parsed, else 0."""
    return float(turn.valid)


def tool_reward(episode: Episode, component: str) -> list[float | None]:
    """Turn rewards that tools gave under the component's name, so that a recipe can weight or gate them."""
    return [turn.rewards.get(component) for turn in episode.turns]


METRICS: dict[str, Callable[..., float]] = {"exact_match": exact_match, "f1": f1, "numeric": numeric}
"""Correctness of an answer, without `maths`, which takes its time (`maths.with_correctness`)."""


def code_in(text: str) -> str:
    """Returns the last fenced block of a text without its fence, or else the whole text."""
    blocks = re.findall(r"```[^\n`]*\n(.*?)```", text, re.DOTALL)
    return str(blocks[-1]) if blocks else text


def gold(task: Task, key: str) -> list[str]:
    """Returns the references of a task, at least one.

    Raises:
        TaskError: `task.data[key]` is missing, empty, or not a text, a number or a list of these.
    """
    if key not in task.data:
        raise TaskError(
            f"no gold answer: data has no {key!r}, only {sorted(task.data) or 'nothing'}",
            place=f"task {task.id}",
            remedy="set the reward's `key` to the field that holds it",
        )
    found = task.data[key]
    references = list(found) if isinstance(found, list | tuple) else [found]
    if not references or not all(isinstance(reference, str | int | float) for reference in references):
        raise TaskError(
            f"gold answer {key!r} is {found!r}", place=f"task {task.id}", remedy="give a string, or a list of them"
        )
    return [str(reference) for reference in references]


def word_f1(answer: str, reference: str) -> float:
    """Harmonic mean of precision and recall over the bag of normalised words."""
    said, wanted = normalise(answer).split(), normalise(reference).split()
    shared = (Counter(said) & Counter(wanted)).total()
    return 2 * shared / (len(said) + len(wanted)) if shared else 0.0
