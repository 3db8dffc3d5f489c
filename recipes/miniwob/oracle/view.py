"""A page as a solver sees it: the elements of the text that the policy reads, and the calls that it can make."""

from __future__ import annotations

import json
import random
import re
from dataclasses import dataclass, field
from typing import Any

Call = tuple[str, dict[str, Any]]


def text_of(message: Any) -> str:
    """The text of a message: images have none."""
    content = message["content"]
    return content if isinstance(content, str) else "\n".join(part.get("text", "") for part in content)


_LINE = re.compile(
    r'^(?P<depth> *)(?:\[(?P<ref>\d+)\] )?(?P<what>\S+)(?: (?P<text>"(?:[^"\\]|\\.)*"))? '
    r"@(?P<x>-?\d+),(?P<y>-?\d+) (?P<w>\d+)x(?P<h>\d+)(?P<traits>.*)$"
)
_TRAIT = re.compile(r' (\w+)=("(?:[^"\\]|\\.)*"|\[.*?\](?= \w+=|$))')


@dataclass
class Element:
    """A line of the listing. `inside` are the lines below it that belong to it."""

    depth: int
    ref: int
    tag: str
    id: str
    classes: tuple[str, ...]
    text: str
    x: int
    y: int
    w: int
    h: int
    traits: dict[str, Any]
    inside: list[Element] = field(default_factory=list)
    parent: Element | None = None

    @property
    def middle(self) -> tuple[int, int]:
        return self.x + self.w // 2, self.y + self.h // 2

    @property
    def words(self) -> str:
        """Its text and that of all elements in it."""
        return " ".join(filter(None, [self.text, *(each.words for each in self.inside)]))

    def all(self) -> list[Element]:
        """The elements in it, at any depth."""
        return [found for each in self.inside for found in (each, *each.all())]

    def __getitem__(self, trait: str) -> Any:
        return self.traits.get(trait, "")


class View:
    """What the page shows now.

    Attributes:
        turn: the elements after each call of the last turn.
    """

    def __init__(self, text: str, rng: random.Random) -> None:
        self.rng = rng
        self.turn: list[list[Element]] = []
        self.read(text)

    def read(self, text: str) -> None:
        """Takes what followed an action. What is no listing (an error, the end) leaves the elements as they were."""
        first, *lines = str(text).split("\n")
        found = [match for line in lines if (match := _LINE.match(line))]
        if not lines and not found:
            return
        self.goal, self.elements = first, []
        open_: list[Element] = []
        for match in found:
            tag, *names = re.split(r"(?=[#.])", match["what"])
            element = Element(
                len(match["depth"]), int(match["ref"] or 0), tag,
                next((name[1:] for name in names if name[0] == "#"), ""),
                tuple(name[1:] for name in names if name[0] == "."),
                json.loads(match["text"]) if match["text"] else "",
                *(int(match[key]) for key in "xywh"),
                {key: json.loads(value) for key, value in _TRAIT.findall(match["traits"])},
            )  # fmt: skip
            while open_ and open_[-1].depth >= element.depth:
                open_.pop()
            if open_:
                element.parent = open_[-1]
                open_[-1].inside.append(element)
            open_.append(element)
            self.elements.append(element)
        self.turn.append(self.elements)

    def quoted(self) -> list[str]:
        """What stands in quotes in the instruction."""
        return re.findall(r'"(.*?)"', self.goal)

    def goal_like(self, pattern: str) -> tuple[str, ...]:
        """The groups of a pattern in the instruction."""
        match = re.search(pattern, self.goal)
        assert match is not None, f"the instruction {self.goal!r} is not like {pattern!r}"
        return match.groups()

    def all(self, tag: str = "", id: str = "", cls: str = "", text: str | None = None) -> list[Element]:
        """Elements of a tag, id, class and text; what is empty may be anything."""
        return [
            each
            for each in self.elements
            if (not tag or each.tag == tag)
            and (not id or each.id == id)
            and (not cls or cls in each.classes)
            and (text is None or each.text == text)
        ]

    def one(self, tag: str = "", id: str = "", cls: str = "", text: str | None = None) -> Element:
        """The first such element."""
        found = self.all(tag, id, cls, text)
        assert found, f"the page shows no {tag or 'element'} #{id} .{cls} {text!r}"
        return found[0]

    def has(self, tag: str = "", id: str = "", cls: str = "", text: str | None = None) -> bool:
        return bool(self.all(tag, id, cls, text))


def click(element: Element) -> Call:
    return "click", {"ref": element.ref}


def fill(element: Element, text: str) -> Call:
    return "type", {"ref": element.ref, "text": text}


def type_(text: str) -> Call:
    return "type", {"text": text}


def key(keys: str) -> Call:
    return "key", {"keys": keys}


def select(element: Element, *options: str) -> Call:
    return "select", {"ref": element.ref, "options": list(options)}


def click_at(x: float, y: float) -> Call:
    return "left_click", {"x": round(x), "y": round(y)}


def drag(*path: tuple[float, float]) -> Call:
    return "left_click_drag", {"path": [[round(x), round(y)] for x, y in path]}


def move(x: float, y: float) -> Call:
    return "mouse_move", {"x": round(x), "y": round(y)}


def scroll(element: Element, down: int) -> Call:
    x, y = element.middle
    return "scroll", {"x": x, "y": y, "down": down}


def wait(seconds: float) -> Call:
    return "wait", {"seconds": seconds}
