"""Learning from "try again": rewards of repeated answers."""

from __future__ import annotations

import re

from agentrl.registry import checks
from agentrl.rewards.declare import Scored, reward
from agentrl.rewards.functions.answers.comparers import Comparer, classes, then
from agentrl.rewards.functions.verifiers import gold
from agentrl.types.episode import Episode, Turn
from agentrl.types.task import Task


@reward(source="UFO, lichengliu03/unary-feedback@b9eb4bd (the README writes gamma^t)", per_turn=True)
def unary_feedback(
    task: Task,
    episode: Episode,
    *,
    key: str = "answer",
    tool: str = "answer",
    argument: str = "answer",
    pattern: str | None = None,
    decay: float = 0.5,
    repetition: float = 0.5,
    comparer: Comparer = "squad",
) -> Scored:
    """Per turn: decay^t for the right answer, t counting the answers from 0; the last turn pays for repetition.

    At the end `repetition` * (1 - E / T) is taken off the policy's last turn, with T answers of which E differ. Turns
    without an answer get 0 and do not advance t.

    Args:
        tool, argument: the answer of a turn is this argument of its call of this tool.
        pattern: instead of a call, a regular expression whose group 1 is the answer in the turn's text.
        comparer: compares answers: `squad`, `exact`, `numeric` or `maths`.
    """
    references = gold(task, key)
    said = [
        (turn.index, answer)
        for turn in episode.own_turns
        if (answer := answer_of(turn, tool, argument, pattern)) is not None
    ]

    def scored(same: list[int | None]) -> Scored:
        """`same`: the classes of the references and, behind them, of the answers."""
        right, given = {*same[: len(references)]}, same[len(references) :]
        values: list[float | None] = [0.0] * len(episode.turns)
        for t, ((index, _), kind) in enumerate(zip(said, given, strict=True)):
            values[index] = decay**t if kind in right else 0.0
        if said:
            last = episode.own_turns[-1].index
            values[last] = (values[last] or 0.0) - repetition * (1.0 - len({*given}) / len(given))
        return Scored(values, f"{len(given)} answers, {len({*given})} different")

    return then(classes([*references, *(answer for _, answer in said)], comparer), scored)


def answer_of(turn: Turn, tool: str, argument: str, pattern: str | None) -> str | None:
    """Returns the answer of a turn; None if it is missing or empty."""
    if pattern is not None:
        match = checks.pattern(pattern, re.DOTALL).search(turn.text)
        text = match[1] if match else ""
    else:
        found = (call.arguments.get(argument) for call in turn.calls if call.name == tool)
        text = str(next(found, None) or "")
    return text.strip() or None
