"""The terms of UI-R1's and GUI-R1's reward for one step, each 0 or 1: format, type, point, text."""

from __future__ import annotations

from agentrl.rewards import reward
from agentrl.rewards.functions.verifiers import word_f1
from agentrl.types.episode import CallRecord, Episode
from agentrl.types.task import Task

SOURCE = "UI-R1 (arXiv:2503.21620, section 3.2) and GUI-R1 (arXiv:2504.10458, section 3.2)"


@reward(source=SOURCE)
def one_call(episode: Episode) -> float:
    """The format: the first reply is one call that can be read and fits the action's arguments."""
    return float(_call(episode) is not None and len(episode.turns[0].calls) == 1)


@reward(source=SOURCE)
def right_type(task: Task, episode: Episode) -> float:
    """Whether the action is the right one; a scroll also in its direction."""
    call, action = _call(episode), task.data["action"]
    if call is None or call.name != action["type"]:
        return 0.0
    return float(call.arguments.get("scroll_direction") == action.get("direction"))


@reward(source=SOURCE)
def right_point(task: Task, episode: Episode) -> float:
    """Whether the point is in the element's box, whatever the action is. Without a box: whether the type is right."""
    call, action = _call(episode), task.data["action"]
    if "box" not in action:
        return right_type(task, episode)
    x, y = (call.arguments.get("coordinate") if call is not None else None) or (-1.0, -1.0)
    left, top, right, bottom = action["box"]
    return float(left <= x <= right and top <= y <= bottom)


@reward(source=SOURCE)
def right_text(task: Task, episode: Episode, least_f1: float = 0.5) -> float:
    """Whether the words' F1 with the text is above `least_f1`. Without a text: whether the type is right."""
    call, action = _call(episode), task.data["action"]
    if "text" not in action:
        return right_type(task, episode)
    return float(call is not None and word_f1(str(call.arguments.get("text", "")), action["text"]) > least_f1)


@reward(source=SOURCE)
def all_right(task: Task, episode: Episode) -> float:
    """Success: every term is 1."""
    return float(one_call(episode) and all(term(task, episode) for term in (right_type, right_point, right_text)))


def _call(episode: Episode) -> CallRecord | None:
    """The first call of the first reply, if it could be carried out."""
    calls = episode.turns[0].calls if episode.turns else []
    return calls[0] if calls and calls[0].outcome == "ok" else None
