"""Rewards of places on a picture: boxes that a reply names, against the gold ones, by overlap and by distance."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from typing import Any

from agentrl.rewards.declare import reward
from agentrl.types.episode import Episode
from agentrl.types.errors import TaskError
from agentrl.types.task import Task

Box = tuple[float, float, float, float]
"""Left, top, right, bottom."""

_NUMBER = r"\s*(-?\d{1,9}(?:\.\d{1,9})?)\s*"
_BOX = re.compile(rf"\[{_NUMBER},{_NUMBER},{_NUMBER},{_NUMBER}\]")


@reward(source="V-Triune, arXiv:2505.18129; MiniMax-AI/One-RL-to-See-Them-All reward_server/verify.py", bounds=(0, 1))
def box_iou(
    task: Task,
    episode: Episode,
    *,
    key: str = "box",
    at_least: float = 0.0,
    threshold: str | None = None,
    surplus: float = 0.6,
) -> float:
    """The overlap of the answer's boxes with the gold boxes: surplus^|said - gold| (sum of matched IoU) / gold.

    IoU is the area of the intersection over that of the union. The two boxes with the highest IoU are matched first; a
    match below the threshold counts 0. Boxes are read as `[left, top, right, bottom]`, anywhere in the answer.

    Args:
        key: field of `task.data` with a box or a list of boxes.
        at_least: the least IoU that counts.
        threshold: field of `task.data` that replaces `at_least` where a task has it: the schedule `stepwise` writes it.
        surplus: factor for every box too many or too few. With 1 an answer of many boxes is sure to hit.

    Raises:
        TaskError: no gold box.
    """
    gold, said = _gold(task, key), boxes_in(episode.answer or "")
    least = at_least if threshold is None else float(task.data.get(threshold, at_least))
    return surplus ** abs(len(said) - len(gold)) * sum(_matched(said, gold, least)) / len(gold)


@reward(source="BTL-UI, arXiv:2509.15566; xiaomi-research/btl-ui recipe/btl-ui/reward_fn.py", bounds=(0, 1))
def box_look(task: Task, episode: Episode, *, key: str = "box", tag: str = "blink", above: float = 0.5) -> float:
    """1 if a region between `<tag>` and `</tag>` of the first reply overlaps the gold box by more than `above`.

    0 if two regions overlap each other by `above` or more: naming a place twice is no look. A task
    whose field is null has nothing to look at: 1.

    Args:
        key: field of `task.data` with the box.
        above: IoU.

    Raises:
        TaskError: the field is neither a box nor null.
    """
    if key in task.data and task.data[key] is None:
        return 1.0
    (gold, *_), text = _gold(task, key), episode.turns[0].text if episode.turns else ""
    _, opened, behind = text.partition(f"<{tag}>")
    inside, closed, _ = behind.partition(f"</{tag}>")
    regions = boxes_in(inside) if opened and closed else []
    if any(iou(a, b) >= above for a, b in itertools.combinations(regions, 2)):
        return 0.0
    return float(any(iou(region, gold) > above for region in regions))


@reward(source="ours: grades a box that does not meet the gold one, where its IoU is 0", bounds=(0, 1))
def box_distance(task: Task, episode: Episode, *, key: str = "box", size: str = "size") -> float:
    """1 - (distance of the centres of the answer's first box and the gold box) / diagonal of the picture, at least 0.

    0 without a box.

    Args:
        key: field of `task.data` with the box.
        size: field with the width and the height of the picture.

    Raises:
        TaskError: no gold box.
    """
    (gold, *_), said = _gold(task, key), boxes_in(episode.answer or "")
    try:
        width, height = map(float, task.data[size])
        diagonal = math.hypot(width, height)
    except (KeyError, TypeError, ValueError):
        diagonal = 0.0
    if not diagonal > 0:
        message = f"no size of the picture: {size!r} is {task.data.get(size)!r}"
        raise TaskError(message, place=f"task {task.id}", remedy="[width, height]")
    if not said:
        return 0.0
    return max(0.0, 1.0 - math.dist(_centre(said[0]), _centre(gold)) / diagonal)


def boxes_in(text: str) -> list[Box]:
    """Returns the boxes that a text names, `[left, top, right, bottom]` each, without those that have no area."""
    found = [tuple(map(float, match)) for match in _BOX.findall(text)]
    return [(left, top, right, bottom) for left, top, right, bottom in found if left < right and top < bottom]


def iou(a: Box, b: Box) -> float:
    """Returns the intersection over union of two boxes."""
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    both = max(0.0, width) * max(0.0, height)
    return both / (_area(a) + _area(b) - both)


def _matched(said: Sequence[Box], gold: Sequence[Box], least: float) -> list[float]:
    """Returns the IoU of matched pairs, the highest first."""
    pairs = sorted(((iou(a, b), i, j) for i, a in enumerate(said) for j, b in enumerate(gold)), reverse=True)
    left, right, found = set(range(len(said))), set(range(len(gold))), []
    for value, i, j in pairs:
        if value >= least and i in left and j in right:
            left.remove(i)
            right.remove(j)
            found.append(value)
    return found


def _area(box: Box) -> float:
    return (box[2] - box[0]) * (box[3] - box[1])


def _centre(box: Box) -> tuple[float, float]:
    return (box[0] + box[2]) / 2, (box[1] + box[3]) / 2


def _gold(task: Task, key: str) -> list[Box]:
    """Returns the gold boxes, one at least."""
    found: Any = task.data.get(key)
    try:
        boxes = [found] if isinstance(found[0], int | float) else found
        gold = [(float(left), float(top), float(right), float(bottom)) for left, top, right, bottom in boxes]
    except (TypeError, ValueError, IndexError, KeyError):
        gold = []
    if not gold or any(left >= right or top >= bottom for left, top, right, bottom in gold):
        message = f"no gold box: {key!r} is {found!r}"
        raise TaskError(message, place=f"task {task.id}", remedy="[left, top, right, bottom], or a list of those")
    return gold
