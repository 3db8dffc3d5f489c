"""Rewards of boxes, on numbers worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from agentrl.rewards.functions.boxes import box_distance, box_iou, box_look, boxes_in, iou
from agentrl.types.errors import TaskError
from agentrl.types.task import Task
from tests.rewards.make import make_episode, turn

ONE = Task.of("one", "", box=[0, 0, 10, 10], size=[30, 40])
TWO = Task.of("two", "", box=[[0, 0, 10, 10], [20, 0, 30, 10]], size=[30, 40])


def answered(task: Task, answer: str | None) -> Any:
    return make_episode(task, turn(), answer=answer)


@pytest.mark.parametrize(("text", "boxes"), [
    ("[1, 2, 3.5, 4]", [(1, 2, 3.5, 4)]),
    ('[{"bbox_2d": [1,2,3,4], "label": "a"}, {"bbox_2d": [-1, 0, 5, 6]}]', [(1, 2, 3, 4), (-1, 0, 5, 6)]),
    ("[3, 2, 1, 4] [1, 2, 3] [1, 2, 3, 4, 5] [1, 2, 1, 4] [1e9, 2, 3, 4] [inf, 0, 1, 1]", []),
    ("[" + "9" * 400 + ", 0, 1, 1]", []),
])  # fmt: skip
def test_boxes_of_a_text(text: str, boxes: list[Any]) -> None:
    assert boxes_in(text) == boxes


def test_overlap_of_two_boxes() -> None:
    assert iou((0, 0, 10, 10), (0, 0, 10, 10)) == 1
    assert iou((0, 0, 10, 10), (5, 0, 15, 10)) == pytest.approx(50 / 150)
    assert iou((0, 0, 10, 10), (10, 0, 20, 10)) == 0
    assert iou((0, 0, 10, 10), (2, 2, 4, 4)) == pytest.approx(4 / 100)


@pytest.mark.parametrize(("answer", "settings", "value"), [
    ("[0, 0, 10, 8]", {}, 0.8),
    ("[0, 0, 10, 8]", {"at_least": 0.8}, 0.8),
    ("[0, 0, 10, 8]", {"at_least": 0.81}, 0.0),
    ("[0, 0, 10, 8] [20, 20, 30, 30]", {}, 0.48),
    ("[0, 0, 10, 8] [20, 20, 30, 30]", {"surplus": 1}, 0.8),
    ("[0, 0, 10, 8] [0, 0, 10, 10]", {"surplus": 1}, 1.0),
    ("left of it", {}, 0.0),
    (None, {}, 0.0),
])  # fmt: skip
def test_overlap_with_one_box(answer: str | None, settings: dict[str, Any], value: float) -> None:
    assert box_iou(ONE, answered(ONE, answer), **settings) == pytest.approx(value)


def test_a_box_is_matched_once() -> None:
    # The second box is the best of both; the first has nothing left to match but the other gold box, which it misses.
    assert box_iou(TWO, answered(TWO, "[0, 0, 10, 8] [0, 0, 10, 10]")) == 0.5
    assert box_iou(TWO, answered(TWO, "[20, 0, 30, 5] [0, 0, 10, 10]")) == 0.75
    assert box_iou(TWO, answered(TWO, "[0, 0, 10, 10]")) == 0.3


def test_the_threshold_of_a_task_replaces_that_of_the_recipe() -> None:
    strict = Task.of("t", "", box=[0, 0, 10, 10], least=0.95)
    for task, value in ((strict, 0.0), (ONE, 0.9)):
        assert box_iou(task, answered(task, "[0, 0, 10, 9]"), at_least=0.5, threshold="least") == value


@pytest.mark.parametrize(("text", "value"), [
    ("<blink>[0, 0, 10, 6]</blink>", 1.0),
    ("<blink>[0, 0, 10, 5]</blink>", 0.0),  # IoU 0.5 is not above
    ("<blink>[20, 20, 30, 30], [0, 0, 10, 9]</blink>", 1.0),
    ("<blink>[0, 0, 10, 10], [0, 0, 10, 5]</blink>", 0.0),  # named twice
    ("[0, 0, 10, 10]", 0.0),
    ("<blink></blink>[0, 0, 10, 10]", 0.0),
])  # fmt: skip
def test_a_look(text: str, value: float) -> None:
    assert box_look(ONE, make_episode(ONE, turn(text=text))) == value


def test_nothing_to_look_at() -> None:
    scroll = Task.of("s", "", box=None)
    assert box_look(scroll, make_episode(scroll, turn(text=""))) == 1.0
    assert box_look(ONE, make_episode(ONE)) == 0.0


@pytest.mark.parametrize(("answer", "value"), [
    ("[0, 0, 10, 10]", 1.0),
    ("[15, 20, 25, 30] [0, 0, 10, 10]", 0.5),  # (20, 25) from (5, 5): 25 of 50
    ("[90, 90, 99, 99]", 0.0),
    ("there", 0.0),
])  # fmt: skip
def test_distance(answer: str, value: float) -> None:
    assert box_distance(ONE, answered(ONE, answer)) == pytest.approx(value)


@pytest.mark.parametrize("box", [None, [], [1, 2, 3], [3, 0, 1, 1], "box", [[0, 0, 1, 1], [1, 1]], 4])
def test_a_task_without_a_gold_box(box: Any) -> None:
    task = Task.of("t", "", box=box, size=[1, 1])
    for function in (box_iou, box_distance, box_look):
        if function is not box_look or box is not None:
            with pytest.raises(TaskError, match="no gold box"):
                function(task, answered(task, "[0, 0, 1, 1]"))
