"""Solvers of pages on which something is to be dragged, drawn or placed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentrl.registry.references import load_object

_VIEW = Path(__file__).parent
click, click_at, drag, wait = (
    load_object(f"./view.py:{name}", _VIEW) for name in ("click", "click_at", "drag", "wait")
)
Calls = Iterator[Any]


def box_into_box(page: Any) -> Calls:
    small, large = page.one(id="draggableSmall"), page.one(id="draggableLarge")
    yield drag(small.middle, large.middle)
    yield click(page.one("button"))


WAYS = {"left": (-15, 0), "right": (15, 0), "up": (0, -15), "down": (0, 15)}


def one_way(page: Any) -> Calls:
    (way,) = page.goal_like(r"Drag the \w+ (left|right|up|down)")
    drawn = next(each for each in page.elements if each.tag in ("circle", "rect", "polygon"))
    (x, y), (dx, dy) = drawn.middle, WAYS[way]
    yield drag((x, y), (x + 2 * dx, y + 2 * dy))
    yield click(page.one("button"))


def shapes_into_box(page: Any) -> Calls:
    (kind,) = page.goal_like(r"all (rectangle|circle|triangle)s")
    tag = {"rectangle": "rect", "circle": "circle", "triangle": "polygon"}[kind]
    box = page.one(id="shape-container")
    targets = [(box.x + 15 + 16 * k, box.y + box.h // 2) for k in range(4)]
    number = len([each for each in page.all(tag) if each.id != "shape-container"])
    for k in range(number):
        drawn = [each for each in page.all(tag) if each.id != "shape-container"][k]
        yield drag(drawn.middle, targets[k])
    yield click(page.one("button"))


def list_item(page: Any) -> Calls:
    name, where = page.goal_like(r"^Drag (\S+) (.*)\.$")
    items = page.all("li")
    now = next(k for k, each in enumerate(items) if each.words == name)
    named = {
        "to the top": 0,
        "to the bottom": len(items) - 1,
        "up by one position": now - 1,
        "down by one position": now + 1,
    }
    number = re.search(r"to the (\d)", where)
    then = int(number[1]) - 1 if number else named[where]
    yield _move(items, now, then)


def _move(items: list[Any], now: int, then: int) -> Any:
    """Drags an item of a vertical list over the one whose place it takes, a little beyond its middle."""
    (x, y), (_, at) = items[now].middle, items[then].middle
    beyond = 6 if then > now else -6
    return drag((x, y), (x, y + beyond), (x, at + beyond))


def sort_list(page: Any) -> Calls:
    for place in range(4):
        items = page.all("li")
        numbers = [int(each.words) for each in items]
        least = numbers.index(min(numbers[place:]), place)
        if least != place:
            yield _move(items, least, place)
            yield wait(0.7)
    yield click(page.one("button"))


def grid_item(page: Any) -> Calls:
    name, where = page.goal_like(r"^Drag (\S+) (.*)\.$")
    items = page.all("li")
    now = next(k for k, each in enumerate(items) if each.words == name)
    places = ["top left", "top center", "top right", "center left", "center", "center right", "bottom left",
              "bottom center", "bottom right"]  # fmt: skip
    steps = {"up by one": -3, "down by one": 3, "left by one": -1, "right by one": 1}
    then = now + steps[where] if where in steps else places.index(where.removeprefix("to the "))
    (x, y), (to_x, to_y) = items[now].middle, items[then].middle
    # A little back and forth at the end: the list makes room as the item moves.
    yield drag((x, y), (x + 3, y + 3), (to_x, to_y), (to_x + 3, to_y + 3), (to_x - 3, to_y - 3), (to_x, to_y))


def draw_line(page: Any) -> Calls:
    x, y = page.one("circle").middle
    if "horizontal" in page.goal:
        yield drag((x - 25, y), (x, y), (x + 25, y))
    else:
        yield drag((x, y - 25), (x, y), (x, y + 25))
    yield click(page.one("button"))


def resize(page: Any) -> Calls:
    (side, way) = page.goal_like(r"the (width|height) is (smaller|larger)")
    area = page.one("textarea")
    x, y = area.x + area.w - 3, area.y + area.h - 3
    by = 12 if way == "larger" else -12
    yield drag((x, y), (x + by, y) if side == "width" else (x, y + by))
    yield click(page.one("button", id="submit"))
