"""Solvers of forms: lists, dates, sliders, spinners, and several fields in order."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentrl.registry.references import load_object

_VIEW = Path(__file__).parent
click, fill, key, select, wait, drag, click_at = (
    load_object(f"./view.py:{name}", _VIEW) for name in ("click", "fill", "key", "select", "wait", "drag", "click_at")
)
Calls = Iterator[Any]


def choose_list(page: Any) -> Calls:
    (name,) = page.goal_like(r"^Select (.*) from the list")
    yield select(page.one("select"), name)
    yield click(page.one("button"))


def choose_several(page: Any) -> Calls:
    (names,) = page.goal_like(r"^Select (.*) from the scroll list")
    options = page.one("select")["options"]
    yield select(page.one("select"), *(each for each in options if each in names.split(", ")))
    yield click(page.one("button"))


MONTHS = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
]


def choose_date(page: Any) -> Calls:
    month, day, _ = map(int, page.goal_like(r"(\d+)/(\d+)/(\d+)"))
    yield click(page.one("input"))
    yield wait(0.5)
    for _ in range(12):
        shown = MONTHS.index(page.one("span", cls="ui-datepicker-month").text) + 1
        if shown == month:
            break
        yield click(page.one("a", cls="ui-datepicker-prev" if shown > month else "ui-datepicker-next"))
    yield click(page.one("a", cls="ui-state-default", text=str(day)))
    yield wait(0.4)
    yield click(page.one("button", id="subbtn"))


def slider(page: Any) -> Calls:
    (number,) = page.goal_like(r"Select (-?\d+) with")
    yield from _slide(page, 0, int(number))
    yield click(page.one("button"))


def _slide(page: Any, place: int, wanted: int) -> Calls:
    """Moves a slider's handle step by step with the arrow keys."""
    handle = page.all("span", cls="ui-slider-handle")[place]
    values = [each for each in page.elements if each.id.startswith("val")]
    steps = wanted - int(values[place].text)
    yield click(handle)
    # The click may have moved it.
    steps = wanted - int([each for each in page.elements if each.id.startswith("val")][place].text)
    if steps:
        yield [key("ArrowRight" if steps > 0 else "ArrowLeft") for _ in range(abs(steps))]


def sliders(page: Any) -> Calls:
    (numbers,) = page.goal_like(r"\[(.*)\]")
    for place, number in enumerate(numbers.split(",")):
        yield from _slide(page, place, int(number))
    yield click(page.one("button"))


def slider_and_box(page: Any) -> Calls:
    number, box = page.goal_like(r"Select (-?\d+) with the slider, click the (\d)")
    yield from _slide(page, 0, int(number))
    yield click(page.one("input", id=f"checkbox-{box}"))
    yield click(page.one("button"))


def radio_and_text(page: Any) -> Calls:
    radio, number, box = page.goal_like(r'Check the (\d).*number "(-?\d+)" into the (\d)')
    yield click([each for each in page.all("input") if each["type"] == "radio"][int(radio) - 1])
    yield fill(page.one("input", id=f"input-{box}"), number)
    yield click(page.one("button"))


def drop_down_and_button(page: Any) -> Calls:
    (name,) = page.goal_like(r"Choose (.*) from the dropdown")
    yield click(page.one("b", cls="button") if page.has("b", cls="button") else page.one(cls="selectric"))
    yield wait(0.3)
    yield click(page.one("li", text=name))
    yield wait(0.3)
    yield click(page.one("button", text=page.quoted()[0]))


def spinner(page: Any) -> Calls:
    (number,) = page.goal_like(r"Select (-?\d+) with")
    way = "ui-spinner-up" if int(number) > 0 else "ui-spinner-down"
    if int(number):
        yield [click(page.one("a", cls=way)) for _ in range(abs(int(number)))]
    yield click(page.one("button", id="subbtn"))


def ticket(page: Any) -> Calls:
    (wanted,) = page.goal_like(r"with the (.*)\.")
    rows = page.all("div", cls="flight")

    def price(row: Any) -> int:
        return int(re.sub(r"\D", "", next(each.text for each in row.all() if each.tag == "button")))

    def minutes(row: Any) -> int:
        text = next(each.words for each in row.all() if "time-duration" in each.classes)
        hours, rest = re.search(r"(\d+)h (\d+)m", text).groups()  # type: ignore[union-attr]
        return int(hours) * 60 + int(rest)

    best = {
        "cheapest cost": lambda: min(rows, key=price),
        "most expensive cost": lambda: max(rows, key=price),
        "shortest duration": lambda: min(rows, key=minutes),
        "longest duration": lambda: max(rows, key=minutes),
    }[wanted]()
    yield click(next(each for each in best.all() if each.tag == "button"))


def number_boxes(page: Any) -> Calls:
    (number,) = map(int, page.quoted())
    boxes = [each for each in page.all("input") if each["type"] == "checkbox"]
    yield [click(box) for box, on in zip(boxes, DIGITS[number].replace("/", ""), strict=False) if on == "1"]
    yield click(page.one("button"))


DIGITS = [
    "0110/1001/1001/1001/1001/1001/0110", "0010/0110/0010/0010/0010/0010/0010", "0110/1001/1001/0010/0100/1000/1111",
    "0110/1001/0001/0110/0001/1001/0110", "1000/1010/1010/1111/0010/0010/0010", "1111/1000/1000/1110/0001/1001/0110",
    "0110/1001/1000/1110/1001/1001/0110", "1111/1001/0001/0010/0010/0100/0100", "0110/1001/1001/0110/1001/1001/0110",
    "0110/1001/1001/0111/0001/1001/0110",
]  # fmt: skip
"""What the page's pictures show: the boxes of each digit, row by row."""
