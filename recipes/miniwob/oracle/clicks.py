"""Solvers of pages on which the right element is to be clicked."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from agentrl.registry.references import load_object

_VIEW = Path(__file__).parent
click, select, wait, key, click_at, move = (
    load_object(f"./view.py:{name}", _VIEW) for name in ("click", "select", "wait", "key", "click_at", "move")
)
Calls = Iterator[Any]


def only_button(page: Any) -> Calls:
    yield click(page.one("button"))


def button_one(page: Any) -> Calls:
    yield click(page.one("button", text="ONE"))


def quoted_button(page: Any) -> Calls:
    yield click(page.one("button", text=page.quoted()[0]))


def buttons_in_order(page: Any) -> Calls:
    for name in ("ONE", "TWO"):
        yield click(page.one("button", text=name))


COLOURS = {
    "red": "#ff0000", "blue": "#0000ff", "olive": "#808000", "lime": "#00ff00", "black": "#000000", "white": "#ffffff",
    "grey": "#808080", "purple": "#800080", "orange": "#ffa500", "yellow": "#ffff00", "cyan": "#00ffff",
    "pink": "#ffc0cb", "magenta": "#ff00ff", "aqua": "#00ffff", "green": "#008000", "brown": "#a52a2a",
}  # fmt: skip


def colour(page: Any) -> Calls:
    (name,) = page.goal_like(r"Click on the (\w+) colored box")
    yield click(next(box for box in page.all(cls="color") if box["bg"] == COLOURS[name]))


def dialog_close(page: Any) -> Calls:
    yield click(page.one("button"))


def dialog_button(page: Any) -> Calls:
    (name,) = page.quoted()
    if name == "x":
        yield click(page.one("button", cls="ui-dialog-titlebar-close"))
    else:
        yield click(page.one("button", text=name))


def link(page: Any) -> Calls:
    yield click(page.one("span", cls="alink", text=page.quoted()[0]))


def widget(page: Any) -> Calls:
    (kind,) = page.quoted()
    kinds: dict[str, Callable[[Any], bool]] = {
        "radio": lambda each: each["type"] == "radio",
        "checkbox": lambda each: each["type"] == "checkbox",
        "text": lambda each: each.tag == "input" and each["type"] == "text",
        "textarea": lambda each: each.tag == "textarea",
        "button": lambda each: each.tag == "button",
    }
    yield click(next(each for each in page.elements if each.ref and kinds[kind](each)))


def focus(page: Any) -> Calls:
    yield click(page.one("input"))


def focus_nth(page: Any) -> Calls:
    (number,) = page.goal_like(r"the (\d)")
    yield click(page.all("input")[int(number) - 1])


def option(page: Any) -> Calls:
    (name,) = page.goal_like(r"^Select (.*) and click Submit")
    yield click(_input_of(page, name))
    yield click(page.one("button"))


def _input_of(page: Any, name: str) -> Any:
    """The input of the label that says `name`."""
    label = next(each for each in page.all("label") if each.words == name)
    return next(each for each in label.inside if each.tag == "input")


def checkboxes(page: Any) -> Calls:
    (names,) = page.goal_like(r"^Select (.*) and click Submit")
    if names != "nothing":
        yield [click(_input_of(page, name)) for name in names.split(", ")]
    yield click(page.one("button"))


SYNONYMS = [
    {"big", "large", "huge", "enormous", "gigantic"}, {"small", "tiny", "little", "mini", "petite"},
    {"red", "scarlet", "crimson", "vermillion"}, {"happy", "cheerful", "joyful", "gleeful", "delighted"},
    {"sad", "unhappy", "sorrowful", "miserable", "tragic"}, {"angry", "mad", "furious", "irritated"},
    {"evil", "wicked", "immoral", "sinful", "corrupt", "depraved"}, {"wrong", "incorrect", "mistaken", "erroneous"},
    {"real", "genuine", "actual"}, {"strange", "odd", "peculiar", "unusual", "weird"},
    {"stop", "cease", "halt", "end", "finish"}, {"scared", "terrified", "panicked", "fearful", "frightened", "afraid"},
    {"quiet", "calm", "peaceful", "serene", "mild"}, {"old", "aged", "archaic"}, {"love", "like", "adore", "favor"},
    {"kill", "murder", "assassinate"}, {"keep", "retain", "preserve", "sustain", "maintain"},
    {"hide", "conceal", "camouflage"}, {"hate", "despise", "loathe", "detest", "dislike"},
    {"funny", "humorous", "amusing", "comical", "laughable"}, {"fat", "fleshy", "plump", "chubby"},
    {"stupid", "dumb", "dull", "unwise"}, {"delicious", "savory", "delectable", "appetizing"},
    {"cut", "slice", "carve", "chop"}, {"brave", "courageous", "fearless"}, {"begin", "start", "initiate", "launch"},
    {"answer", "reply", "response"}, {"television", "televisions", "TV", "TVs"}, {"house", "home", "houses", "homes"},
    {"fire", "flame", "fires", "flames"}, {"pig", "pork", "swine"}, {"rabbit", "rabbits", "bunny", "bunnies"},
    {"car", "cars", "automobile", "automobiles", "vehicle", "vehicles"}, {"water"},
]  # fmt: skip
"""The page's own list: which words it holds for alike."""


def similar_checkboxes(page: Any) -> Calls:
    (names,) = page.goal_like(r"similar to (.*) and click Submit")
    wanted = [group for group in SYNONYMS if group & set(names.split(", "))]
    labels = [label for label in page.all("label") if any(label.words in group for group in wanted)]
    yield [click(next(each for each in label.inside if each.tag == "input")) for label in labels]
    yield click(page.one("button"))


def tab(page: Any) -> Calls:
    (name,) = page.goal_like(r"(Tab #\d)")
    yield click(page.one("a", text=name))


def tab_with_link(page: Any) -> Calls:
    (name,) = page.quoted()
    for tab in [each.text for each in page.all("a")]:
        yield click(page.one("a", text=tab))
        if page.has("span", cls="alink", text=name):
            yield click(page.one("span", cls="alink", text=name))
            return


def collapsible(page: Any) -> Calls:
    yield click(page.one("h3"))
    yield wait(0.6)  # until it has unfolded
    yield click(page.one("button"))


def sections_with_link(page: Any) -> Calls:
    (name,) = page.quoted()
    for number in range(len(page.all("h3"))):
        yield click(page.all("h3")[number])
        yield wait(0.6)
        if page.has("span", cls="alink", text=name):
            yield click(page.one("span", cls="alink", text=name))
            return


def menu(page: Any) -> Calls:
    (path,) = page.goal_like(r"^Select (.*)")
    *folders, last = path.split(">")
    for name in folders:
        yield move(*_item(page, name).middle)
        yield wait(0.5)  # submenus open after a moment
    yield click(_item(page, last))


def _item(page: Any, name: str) -> Any:
    """The item of a menu that says `name`."""
    return next(each for each in page.all("div", cls="ui-menu-item-wrapper") if each.words == name)


def grid_coordinate(page: Any) -> Calls:
    x, y = map(int, page.goal_like(r"\((-?\d),(-?\d)\)"))
    places = sorted(page.all("circle"), key=lambda each: each.middle)
    columns = sorted({each.middle[0] for each in places})
    rows = sorted({each.middle[1] for each in places})
    yield click_at(columns[x + 2], rows[2 - y])


def shape(page: Any) -> Calls:
    yield click(next(each for each in _drawn(page) if _fits(each, page.goal.removeprefix("Click on a "))))


def count_shape(page: Any) -> Calls:
    (what,) = page.goal_like(r"How many (.*)s are there")
    count = sum(_fits(each, what) for each in _drawn(page))
    yield click(page.one("button", text=str(count)))


def _drawn(page: Any) -> list[Any]:
    return [each for each in page.elements if each.tag in ("text", "rect", "circle", "polygon") and each.ref]


def _fits(element: Any, what: str) -> bool:
    """Whether a drawn thing is like `small red triangle`: size, colour and kind, each of which may be left out."""
    words = what.split()
    kind = words.pop()
    size = float(element["size"].removesuffix("px")) if element.tag == "text" else element.w
    if words and words[0] in ("large", "small") and (words.pop(0) == "large") != (size > 15):
        return False
    if words and element["fill"] != COLOURS[words[0]]:
        return False
    names = {"rect": {"rectangle", "shape"}, "circle": {"circle", "shape"}, "polygon": {"triangle", "shape"}}
    of_text = {element.text, "digit" if element.text.isdigit() else "letter"}
    return kind == "item" or kind in names.get(element.tag, of_text)


def identify_shape(page: Any) -> Calls:
    (drawn,) = _drawn(page)
    names = {"rect": "Rectangle", "circle": "Circle", "polygon": "Triangle"}
    name = names.get(drawn.tag) or ("Number" if drawn.text.isdigit() else "Letter")
    yield click(page.one("button", text=name))


def shades(page: Any) -> Calls:
    (name,) = page.goal_like(r"shades of (\w+)")
    place = ("red", "green", "blue").index(name)

    def channels(element: Any) -> list[int]:
        return [int(element["bg"][k : k + 2], 16) for k in (1, 3, 5)]

    spans = [each for each in page.all("span") if each["bg"]]
    yield [click(each) for each in spans if channels(each)[place] == max(channels(each))]
    yield click(page.one("button"))


def ascending(page: Any) -> Calls:
    places = [page.one("text", text=str(number)).middle for number in range(1, 6)]
    yield [click_at(*place) for place in places]


def greatest(page: Any) -> Calls:
    values = []
    for card in range(3):
        yield click(page.all("div", cls="card")[card])
        values.append(int(page.all("div", cls="card")[card].words))
    yield click(page.all("div", cls="card")[values.index(max(values))])
    yield click(page.one("button", id="submit"))


def odd_or_even(page: Any) -> Calls:
    for row in page.all("div", cls="row"):
        number = int(next(each.text for each in row.all() if re.fullmatch(r"-?\d+", each.text)))
        yield click(next(each for each in row.all() if each.text == ("Odd" if number % 2 else "Even")))
    yield click(page.one("button", text="Submit"))


def tree(page: Any) -> Calls:
    (name,) = page.quoted()
    opened: set[tuple[str, int]] = set()
    while True:
        if page.has("span", text=name):
            yield click(page.one("span", text=name))
            return
        folders = [each for each in page.all("span", cls="folder") if each.ref not in opened]
        opened.add(folders[0].ref)
        yield click(folders[0])
        yield wait(0.1)
