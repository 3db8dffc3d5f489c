"""One step on a real page: a screenshot, what to do, and one action, judged by its type, its point and its text."""

from __future__ import annotations

import random
import re
import zlib
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from agentrl import Environment, Message, Say, Task, ToolResult, tool
from agentrl.registry.references import load_object

HERE = Path(__file__).parent
load_views = load_object("./pages.py:views", HERE)

CLICKED = {"link": "link", "button": "button", "checkbox": "checkbox", "radio": "radio button", "tab": "tab",
           "menuitem": "menu item", "clickable": ""}  # fmt: skip
TYPED = {"textbox", "searchbox"}
CLICKS = [
    "Click the {role} '{name}'.",
    "Please click on '{name}'.",
    "Use the {role} '{name}'.",
    "Select '{name}' on this page.",
]
TYPES = ["Type '{text}' into the field '{name}'.", "Enter '{text}' as '{name}'.", "Fill in '{name}' with '{text}'."]
SCROLLS = ["Show what is further {way} on this page.", "Scroll {way}.", "Move {way} the page."]
WORDS = ["deque", "timeout", "index", "vacuum", "Ada", "thread", "file name", "42", "encoding", "New York"]
PER_VIEW = 4


def steps(n: int = 512, seed: int = 0, held_out: bool = False, eyes: bool = True, pages: int = 256) -> Iterator[Task]:
    """`n` steps, of each view in turn. A smaller `n` gives the beginning of the same list.

    Args:
        seed: order, and what is asked for.
        held_out: the pages (one in eight, by a hash of the address) that are for evaluation, not the rest.
        pages: how many are looked at; their screenshots are taken on first use (all: about a minute).
        eyes: show the screenshot; False: a list of what is on the page, for a policy that reads only text.

    Raises:
        TaskError: a package with pages is not installed.
        RecipeError: there is no Chromium to take the screenshots.
    """
    folder, views = load_views(pages)
    kept = [view for view in views if (zlib.crc32(view.page.encode()) % 8 == 0) == held_out]
    random.Random(f"{seed}/{held_out}").shuffle(kept)
    count = 0
    for number in range(PER_VIEW):
        for view in kept:
            step = _step(view, number, random.Random(f"{seed}/{view.file}/{number}"))
            if step is not None and count < n:
                count += 1
                yield _task(f"{view.page}/{view.file[-5]}/{number}", step, view, folder, eyes)


def _step(view: Any, number: int, rng: random.Random) -> tuple[str, dict[str, Any]] | None:
    """What to do, and the action that does it: of four, one scrolls and one types, where the page allows it."""
    times = Counter(one["name"].lower() for one in view.elements)
    named = [one for one in view.elements if re.search(r"\w", one["name"]) and times[one["name"].lower()] == 1]
    named = [one for one in named if len(one["name"]) <= 80 and "'" not in one["name"]]
    fields = [one for one in named if one["role"] in TYPED]
    if number == 1 and view.down:
        return rng.choice(SCROLLS).format(way="down"), {"type": "scroll", "direction": "down"}
    if number == 2 and fields:
        field, text = rng.choice(fields), rng.choice(WORDS)
        said = rng.choice(TYPES).format(name=field["name"], text=text)
        return said, {"type": "type", "box": field["box"], "text": text}
    targets = sorted((one for one in named if one["role"] in CLICKED), key=lambda one: (one["box"][1], one["box"][0]))
    if not targets:
        return None
    # Another element each time, as far as there are so many.
    target = random.Random(view.file).sample(targets, len(targets))[number % len(targets)]
    said = rng.choice(CLICKS).format(role=CLICKED[target["role"]], name=target["name"])
    return said.replace("  ", " "), {"type": "left_click", "box": target["box"]}


def _task(id: str, step: tuple[str, dict[str, Any]], view: Any, folder: Path, eyes: bool) -> Task:
    said, action = step
    width, height = view.size
    shown: list[Any] = [f"The screen, {width} x {height}:"]
    if eyes:
        shown.append({"type": "image", "image": str(folder / view.file)})
    else:
        lines = (f'{one["role"]} "{one["name"]}" at {one["box"]}' for one in view.elements)
        shown[0] += "".join(f"\n{line}" for line in lines) + ("\nThe page goes on below." if view.down else "")
    content = [*shown, said] if eyes else f"{shown[0]}\n\n{said}"
    return Task.of(id, [{"role": "user", "content": content}], actions=[action], size=[width, height])


Point = Annotated[list[float], Field(min_length=2, max_length=2, description="[x, y] in pixels of the screen")]


class Step(Environment):
    """The actions, under the names that models were trained on. The first one ends the episode."""

    def open(self, task: Task, sandbox: object) -> None:
        self.page = task.id.rpartition("/")[0]

    @tool
    def left_click(self, coordinate: Point) -> ToolResult:
        """Click with the left button."""
        return ToolResult("", done=True)

    @tool
    def type(self, coordinate: Point, text: str) -> ToolResult:
        """Click into a field and type a text."""
        return ToolResult("", done=True)

    @tool
    def scroll(self, scroll_direction: Literal["up", "down", "left", "right"]) -> ToolResult:
        """Scroll the page."""
        return ToolResult("", done=True)

    def state_key(self) -> str:
        return self.page


# --- scripts --------------------------------------------------------------------------------------------------------


def oracle(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Acts on the middle of the box."""
    (action,) = task.data["actions"]
    yield _say(action, *_middle(action))


def random_agent(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Any of the actions, at any point of the screen, with any of the words."""
    width, height = task.data["size"]
    action = {"type": rng.choice(["left_click", "type", "scroll"]), "direction": rng.choice(["up", "down"])}
    box = {} if action["type"] == "scroll" else {"box": []}
    text = {"text": rng.choice(WORDS)} if action["type"] == "type" else {}
    yield _say({**action, **box, **text}, rng.randrange(width), rng.randrange(height))


def junk(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Words, and no action."""
    yield Say("I would click on it.")


def _middle(action: dict[str, Any]) -> tuple[float, float]:
    left, top, right, bottom = action.get("box", [0, 0, 0, 0])
    return (left + right) / 2, (top + bottom) / 2


def _say(action: dict[str, Any], x: float, y: float) -> Say:
    given: dict[str, Any] = {"coordinate": [x, y]} if "box" in action else {"scroll_direction": action["direction"]}
    return Say(calls=[(action["type"], {**given, **({"text": action["text"]} if "text" in action else {})})])
