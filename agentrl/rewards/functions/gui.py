"""Rewards of actions in graphical interfaces: type, point, text and format, each term apart."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentrl.rewards.declare import reward
from agentrl.rewards.functions.verifiers import word_f1
from agentrl.types.episode import CallRecord, Episode, Turn
from agentrl.types.errors import TaskError
from agentrl.types.task import Task

SOURCE = "GUI-R1 (arXiv:2504.10458) and UI-R1 (arXiv:2503.21620)"
CONTAINERS = ("computer", "computer_use", "act")
"""Functions whose argument `action` is the type; of other functions it is the name."""

Wanted = Mapping[str, Any]


@reward(source=SOURCE)
def gui_type(task: Task, episode: Episode, *, key: str = "actions") -> float:
    """Share of the gold actions whose type the turn's first call has.

    `task.data[key]` is a list with one entry per turn: `{type: left_click, box: [left, top, right, bottom]}` or
    `{type: left_click, point: [x, y]}`, `{type: type, text: ...}`, `{type: scroll, direction: down}`, or null for a
    turn that is not judged. The type is the call's name, or the argument `action` of the `gui` tool's functions
    `computer`, `computer_use` and `act`; a gold `direction` belongs to it. A call has its point as `coordinate` or
    `point: [x, y]`, or as `x` and `y`, its text as `text`, `input_text` or `keys` (joined by `+`), its direction as
    `scroll_direction`, `direction` or `input_text`, or as the sign of `pixels`: upwards if positive.

    With one action, UI-R1's reward is `gui_type` + `gui_point` (`with_type: true`) + `gui_format`, each with weight 1.
    GUI-R1's paper adds `gui_text`; its code asks for all of them at once: 0.8 `gui_success` + 0.2 `gui_format`.

    Raises:
        TaskError: no gold actions.
    """
    return _share(task, episode, key, _right_type)


@reward(source=SOURCE)
def gui_point(
    task: Task, episode: Episode, *, key: str = "actions", radius: float = 0.0, with_type: bool = False
) -> float:
    """Share of the gold actions whose point is right: in the box, or near the point. See `gui_type` for the actions.

    An action without box and point counts as right where its type is.

    Args:
        radius: with `point`: how far the call may be from it, in the units of the task.
        with_type: the type has to be right as well, as in UI-R1's code.

    Raises:
        TaskError: no gold actions.
    """

    def right(call: CallRecord, wanted: Wanted) -> bool:
        alone = _right_point(call, wanted, radius) if "box" in wanted or "point" in wanted else None
        return _right_type(call, wanted) if alone is None else alone and (not with_type or _right_type(call, wanted))

    return _share(task, episode, key, right)


@reward(source=SOURCE)
def gui_text(task: Task, episode: Episode, *, key: str = "actions", text_f1: float = 0.5) -> float:
    """Share of the gold actions whose text is right. See `gui_type` for the actions.

    An action without text counts as right where its type is.

    Args:
        text_f1: least F1 of the words at which a text counts as right.

    Raises:
        TaskError: no gold actions.
    """

    def right(call: CallRecord, wanted: Wanted) -> bool:
        return _right_text(call, wanted, text_f1) if "text" in wanted else _right_type(call, wanted)

    return _share(task, episode, key, right)


@reward(source=SOURCE)
def gui_format(task: Task, episode: Episode, *, key: str = "actions") -> float:
    """Share of the gold actions for which the reply is one call that can be read and fits the action's arguments.

    The papers ask for `<think>` and `<answer>` tags; here the form is that of the recipe's calls.

    Raises:
        TaskError: no gold actions.
    """
    actions = _actions(task, key)
    turns = [episode.turns[index] for index, _ in actions if index < len(episode.turns)]
    fit = [len(turn.calls) == 1 and turn.calls[0].valid and turn.calls[0].outcome == "ok" for turn in turns]
    return sum(fit) / max(1, len(actions))


@reward(source=SOURCE)
def gui_success(
    task: Task, episode: Episode, *, key: str = "actions", radius: float = 0.0, text_f1: float = 0.5
) -> float:
    """Share of the gold actions of which type, point and text are right. See `gui_type` for the actions.

    Args:
        radius: with `point`: how far the call may be from it, in the units of the task.
        text_f1: least F1 of the words at which a text counts as right.

    Raises:
        TaskError: no gold actions.
    """
    return _share(task, episode, key, lambda call, wanted: _all_right(call, wanted, radius, text_f1))


@reward(source=SOURCE)
def gui_action(
    task: Task,
    episode: Episode,
    *,
    key: str = "actions",
    radius: float = 0.0,
    text_f1: float = 0.5,
    type_weight: float = 0.5,
) -> list[float | None]:
    """Scores the first call of each turn against the gold action of that turn. See `gui_type` for the actions.

    The score is `type_weight` for the type, and 1 if point and text are right as well; an action that has neither
    scores 1 by its type. A wrong type scores 0. Turns beyond the gold actions are not scored.

    Differs from the papers, which judge one step and add terms up: those are `gui_type`, `gui_point` and the others.

    Args:
        radius: with `point`: how far the call may be from it, in the units of the task.
        text_f1: least F1 of the words at which a text counts as right.

    Raises:
        TaskError: no gold actions.
    """
    scores: list[float | None] = [None] * len(episode.turns)
    for index, wanted in _actions(task, key):
        if index < len(scores):
            call = _first(episode.turns[index])
            right_type = call is not None and _right_type(call, wanted)
            right = call is not None and _all_right(call, wanted, radius, text_f1)
            scores[index] = 1.0 if right else type_weight * right_type
    return scores


def _actions(task: Task, key: str) -> list[tuple[int, Wanted]]:
    """Index of the turn, and the gold action."""
    actions = task.data.get(key)
    if not isinstance(actions, Sequence) or isinstance(actions, str) or not actions:
        raise TaskError(f"no gold actions: {key!r} is {actions!r}", place=f"task {task.id}", remedy="one per turn")
    return [(index, wanted) for index, wanted in enumerate(actions) if wanted is not None]


def _share(task: Task, episode: Episode, key: str, right: Callable[[CallRecord, Wanted], bool]) -> float:
    """Returns the share of the gold actions that are right. Actions that the episode did not reach are wrong."""
    actions = _actions(task, key)
    calls = [(_first(episode.turns[index]), wanted) for index, wanted in actions if index < len(episode.turns)]
    return sum(call is not None and right(call, wanted) for call, wanted in calls) / max(1, len(actions))


def _first(turn: Turn) -> CallRecord | None:
    """Its first call, if that could be read."""
    return turn.calls[0] if turn.calls and turn.calls[0].valid else None


def _right_type(call: CallRecord, wanted: Wanted) -> bool:
    given = call.arguments
    name = given.get("action") if call.name in CONTAINERS else call.name
    return bool(name == wanted["type"] and wanted.get("direction") in (None, _direction(given)))


def _direction(given: Mapping[str, Any]) -> Any:
    """Of a scroll."""
    pixels = given.get("pixels")
    if isinstance(pixels, int | float):
        return "up" if pixels > 0 else "down"
    return given.get("scroll_direction") or given.get("direction") or given.get("input_text")


def _right_point(call: CallRecord, wanted: Wanted, radius: float) -> bool:
    """Returns True if the point is right, or the gold action has none."""
    point = _point(call.arguments)
    if "box" in wanted:
        left, top, right, bottom = wanted["box"]
        return point is not None and left <= point[0] <= right and top <= point[1] <= bottom
    return "point" not in wanted or (point is not None and math.dist(point, wanted["point"]) <= radius)


def _right_text(call: CallRecord, wanted: Wanted, text_f1: float) -> bool:
    """Returns True if the text is right, or the gold action has none."""
    if "text" not in wanted:
        return True
    keys = call.arguments.get("keys") or ""
    pressed = "+".join(map(str, keys)) if isinstance(keys, list) else keys
    said = str(call.arguments.get("text") or call.arguments.get("input_text") or pressed)
    text = str(wanted["text"])
    return said == text or word_f1(said, text) >= text_f1


def _all_right(call: CallRecord, wanted: Wanted, radius: float, text_f1: float) -> bool:
    return _right_type(call, wanted) and _right_point(call, wanted, radius) and _right_text(call, wanted, text_f1)


def _point(arguments: Mapping[str, object]) -> tuple[float, float] | None:
    given: Any = arguments.get("point") or arguments.get("coordinate") or (arguments.get("x"), arguments.get("y"))
    try:
        x, y = given
        point = float(x), float(y)
    except (TypeError, ValueError, OverflowError):
        return None
    return point if all(map(math.isfinite, point)) else None  # NaN is nowhere, and so never too far away
