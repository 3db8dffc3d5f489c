"""Solvers of pages on which a text is to be read, worked out or typed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentrl.registry.references import load_object

_VIEW = Path(__file__).parent
click, fill, key, type_, wait, scroll, drag, select = (
    load_object(f"./view.py:{name}", _VIEW)
    for name in ("click", "fill", "key", "type_", "wait", "scroll", "drag", "select")
)
Calls = Iterator[Any]


def _submit(page: Any, text: str) -> Calls:
    """Types into the page's text field and submits."""
    yield fill(page.one("input"), text)
    yield click(page.one("button"))


def enter_quoted(page: Any) -> Calls:
    yield from _submit(page, page.quoted()[0])


def enter_case(page: Any) -> Calls:
    (text,) = page.quoted()
    yield from _submit(page, text.upper() if "upper case" in page.goal else text.lower())


def enter_password(page: Any) -> Calls:
    yield [fill(each, page.quoted()[0]) for each in page.all("input")]
    yield click(page.one("button"))


def login(page: Any) -> Calls:
    yield [
        fill(page.one("input", id=name), text)
        for name, text in zip(("username", "password"), page.quoted(), strict=False)
    ]
    yield click(page.one("button"))


def login_popup(page: Any) -> Calls:
    for name, text in zip(("username", "password"), page.quoted(), strict=False):
        yield click(page.one("input", id=name))
        if page.has("button", id="popup-cancel"):
            yield click(page.one("button", id="popup-cancel"))
        yield fill(page.one("input", id=name), text)
    yield click(page.one("button", id="subbtn"))


def enter_date(page: Any) -> Calls:
    month, day, year = page.goal_like(r"(\d+)/(\d+)/(\d+)")
    yield fill(page.one("input"), "")
    yield [click(page.one("input")), *(key("ArrowLeft") for _ in range(3)), type_(f"{month}{day}{year}")]
    yield click(page.one("button"))


def enter_time(page: Any) -> Calls:
    hour, minute, half = page.goal_like(r"(\d+):(\d+)\s*([AP]M)")
    yield [click(page.one("input")), *(key("ArrowLeft") for _ in range(3)), type_(f"{int(hour):02}{minute}{half}")]
    yield click(page.one("button"))


def nth_word(page: Any) -> Calls:
    (number,) = page.goal_like(r"the (\d+)")
    word = page.one("p").text.split()[int(number) - 1]
    yield from _submit(page, re.sub(r"[^a-zA-Z]", "", word))


def last_word(page: Any) -> Calls:
    word = page.one("textarea").traits["value"].split()[-1]
    yield fill(page.one("input", id="answer-input"), re.sub(r"[^a-zA-Z0-9]", "", word))
    yield click(page.one("button"))


def read_table(page: Any) -> Calls:
    (name,) = page.goal_like(r"the value of (.*) into the text field")
    yield from _submit(page, _table(page)[name])


def read_table_twice(page: Any) -> Calls:
    table = _table(page)
    for number in (1, 2):
        yield fill(page.one("input", id=f"tt{number}"), table[page.one("label", id=f"ll{number}").text.rstrip(":")])
    yield click(page.one("button"))


def _table(page: Any) -> dict[str, str]:
    return {row.inside[0].text: row.inside[1].text for row in page.all("tr")}


def algebra(page: Any) -> Calls:
    left, sign, right, result = re.match(r"(\w+) ([+-]) (\w+) = (-?\d+)", page.one(id="math-problem").text).groups()  # type: ignore[union-attr]
    total = int(result)
    if sign == "+":
        x = total - int(right if left == "x" else left)
    else:
        x = total + int(right) if left == "x" else int(left) - total
    yield from _submit(page, str(x))


def arithmetic(page: Any) -> Calls:
    left, sign, right = re.match(r"(\d) ([-+x]) (\d)", page.one(id="math-problem").text).groups()  # type: ignore[union-attr]
    a, b = int(left), int(right)
    yield from _submit(page, str({"+": a + b, "-": a - b, "x": a * b}[sign]))


def visual_addition(page: Any) -> Calls:
    yield from _submit(page, str(len(page.all("span", cls="addition-block"))))


def captcha(page: Any) -> Calls:
    yield from _submit(page, "".join(each.text for each in page.one(id="captcha").inside))


def guess(page: Any) -> Calls:
    low, high = 0, 9
    while True:
        number = (low + high) // 2
        yield fill(page.one("input"), str(number))
        yield click(page.one("button"))
        if page.has(id="higher"):
            low = number + 1
        else:
            high = number - 1


def generate(page: Any) -> Calls:
    tests = {
        r"less than (\d+)": lambda n, k: n < k,
        r"greater than (\d+)": lambda n, k: n > k,
        r"an odd (n)": lambda n, k: n % 2 == 1,
        r"an even (n)": lambda n, k: n % 2 == 0,
    }
    bound, test = next((m[1], test) for like, test in tests.items() if (m := re.search(like, page.goal)))
    while True:
        yield click(page.one("button", id="generate"))
        if test(int(page.one(id="display-number").text), int(bound) if bound.isdigit() else 0):
            yield click(page.one("button", id="submit"))


def autocomplete(page: Any) -> Calls:
    start, *end = page.quoted()
    yield [click(page.one("input")), type_(start)]
    yield wait(0.6)
    items = page.all("div", cls="ui-menu-item-wrapper")
    yield click(next(item for item in items if not end or item.text.endswith(end[0])))
    yield click(page.one("button"))


def movies(page: Any) -> Calls:
    wanted = dict(
        zip(
            ("Genre", "Director", "Year"),
            page.goal_like(r"for (.*) movies directed by (.*) from year (\d+)"),
            strict=False,
        )
    )
    wanted["Released"] = wanted["Year"]
    labels = [(each, name) for each in page.elements for name in wanted if re.match(rf"(Movie )?{name}", each.text)]
    for label, name in labels:
        # The field of a label is the one that belongs to the same row.
        row = label.parent
        while not any(each.tag == "input" for each in row.all()):
            row = row.parent
        yield fill(next(each for each in row.all() if each.tag == "input"), wanted[name])
    yield click(next(each for each in page.elements if each.text in ("Submit", "Search", "Go!")))


def scroll_to(page: Any) -> Calls:
    bottom = "to the bottom" in page.goal
    yield scroll(page.one("textarea"), 2000 if bottom else -2000)
    yield click(page.one("button"))


def agreement(page: Any) -> Calls:
    if page.goal.startswith("Click the cancel"):
        yield click(page.one("button", id="cancel"))
        return
    name, button = page.quoted()
    yield scroll(page.one("textarea"), 4000)
    yield fill(page.one("input"), name)
    yield click(page.one("button", text=button))


def terminal(page: Any) -> Calls:
    ending = re.search(r"extension \.(\S+)", page.goal)
    yield wait(0.3)  # the page itself puts the cursor into the terminal after 200 ms
    yield [click(page.one(id="terminal")), type_("ls"), key("Enter")]
    files = next(each.text for each in reversed(page.all("span", cls="output")) if each.text).split()
    yield type_("rm " + next(f for f in files if (f.endswith("." + ending[1]) if ending else "." not in f)))
    yield key("Enter")


def copy(page: Any) -> Calls:
    yield fill(page.one("input"), page.one("textarea")["value"])
    yield click(page.one("button"))


def copy_nth(page: Any) -> Calls:
    (number,) = page.goal_like(r"from the (\d)")
    yield fill(page.one("input"), page.all("textarea")[int(number) - 1]["value"])
    yield click(page.one("button"))


def highlight(page: Any) -> Calls:
    yield _across(page.one("div", id="randomText"))
    yield click(page.one("button"))


def highlight_nth(page: Any) -> Calls:
    (number,) = page.goal_like(r"in the (\d)")
    yield _across(page.all("p")[int(number) - 1])
    yield click(page.one("button"))


def _across(text: Any) -> Any:
    """Drags from behind the last letter to before the first: the other way, the page may scroll to the right."""
    return drag((text.x + text.w - 1, text.y + text.h - 5), (text.x, text.y + 5))
