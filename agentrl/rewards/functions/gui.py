"""Action rules for graphical interfaces: type, point, text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.rewards.declare import reward
from agentrl.rewards.functions.verifiers import word_f1
from agentrl.types.episode import CallRecord, Episode
from agentrl.types.errors import TaskError
from agentrl.types.task import Task


@reward(source="rule-based action rewards of GUI-R1 (arXiv:2504.10458) and UI-R1 (arXiv:2503.21620)")
def gui_action(
    task: Task,
    episode: Episode,
    *,
    key: str = "actions",
    radius: float = 0.0,
    text_f1: float = 0.5,
    type_weight: float = 0.5,
) -> list[float | None]:
    """Per turn: whether its first call is the gold action of that turn.

    The score is `type_weight` for the type (the call's name), plus the rest if point and text are right as well; an
    action that has neither earns all by its type. A wrong type earns nothing. Turns beyond the gold actions have none.

    Differs from the papers: there type, point or text, and format are terms of their own that add up, so that the right
    point with a wrong type still earns its part. The actions are calls of your own tools: none built in can click.

    `task.data[key]` is a list with one entry per turn: `{type: click, box: [x0, y0, x1, y1]}` or
    `{type: click, point: [x, y]}`, `{type: input, text: ...}`, or null for a turn that is not judged. The call has the
    point as `point: [x, y]`, `coordinate: [x, y]` or as `x` and `y`, the text as `text`.

    Args:
        radius: with `point`: how far the call may be from it, in the units of the task.
        text_f1: least F1 of the words at which a text counts as right.

    Raises:
        TaskError: no gold actions.
    """
    actions = task.data.get(key)
    if not isinstance(actions, Sequence) or isinstance(actions, str) or not actions:
        raise TaskError(f"no gold actions: {key!r} is {actions!r}", place=f"task {task.id}", remedy="one per turn")
    scores: list[float | None] = []
    for index, turn in enumerate(episode.turns):
        wanted = actions[index] if index < len(actions) else None
        if wanted is None:
            scores.append(None)
            continue
        call = turn.calls[0] if turn.calls else None
        if call is None or not call.valid or call.name != wanted["type"]:
            scores.append(0.0)
        else:
            scores.append(1.0 if _right(call, wanted, radius, text_f1) else type_weight)
    return scores


def _right(call: CallRecord, wanted: Mapping[str, Any], radius: float, text_f1: float) -> bool:
    """Whether point and text fit, as far as the gold action has them."""
    point = _point(call.arguments)
    if "box" in wanted:
        x0, y0, x1, y1 = wanted["box"]
        if point is None or not (x0 <= point[0] <= x1 and y0 <= point[1] <= y1):
            return False
    if "point" in wanted and (point is None or math.dist(point, wanted["point"]) > radius):
        return False
    if "text" in wanted:
        said = str(call.arguments.get("text", ""))
        return said == str(wanted["text"]) or word_f1(said, str(wanted["text"])) >= text_f1
    return True


def _point(arguments: Mapping[str, object]) -> tuple[float, float] | None:
    given: Any = arguments.get("point") or arguments.get("coordinate") or (arguments.get("x"), arguments.get("y"))
    try:
        x, y = given
        point = float(x), float(y)
    except (TypeError, ValueError, OverflowError):
        return None
    return point if all(map(math.isfinite, point)) else None  # NaN is nowhere, and so never too far away
