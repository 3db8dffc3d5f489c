"""Learning from "try again": rewards of repeated answers."""

from __future__ import annotations

import re

from agentrl.rewards.declare import Scored, reward
from agentrl.rewards.functions.verifiers import gold, normalise
from agentrl.types.episode import Episode, Turn
from agentrl.types.errors import RecipeError
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
) -> Scored:
    """Per turn: decay^t for the right answer, t counting the answers from 0; the last turn pays for repetition.

    At the end `repetition` * (1 - E / T) is taken off the last turn, with T answers of which E differ after
    normalisation. Turns without an answer get 0 and do not advance t.

    Args:
        tool, argument: the answer of a turn is this argument of its call of this tool.
        pattern: instead of a call, a regular expression whose group 1 is the answer in the turn's text.
    """
    references = {normalise(reference) for reference in gold(task, key)}
    answers = [answer_of(turn, tool, argument, pattern) for turn in episode.turns]
    values: list[float | None] = []
    said: list[str] = []
    for answer in answers:
        right = answer is not None and normalise(answer) in references
        values.append(decay ** len(said) if right else 0.0)
        if answer is not None:
            said.append(normalise(answer))
    if said:
        values[-1] = (values[-1] or 0.0) - repetition * (1.0 - len(set(said)) / len(said))
    return Scored(values, f"{len(said)} answers, {len(set(said))} different")


def answer_of(turn: Turn, tool: str, argument: str, pattern: str | None) -> str | None:
    """The answer of a turn; None if it has none or an empty one."""
    if pattern is not None:
        try:
            match = re.search(pattern, turn.text, re.DOTALL)
        except re.error as error:
            raise RecipeError(f"pattern {pattern!r}: {error}", place="rewards") from None
        text = match[1] if match else ""
    else:
        found = (call.arguments.get(argument) for call in turn.calls if call.name == tool)
        text = str(next(found, None) or "")
    return text.strip() or None
