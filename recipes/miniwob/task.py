"""MiniWoB++: 130 small web pages in Chromium, seen as text or as pixels, with the pages' own reward."""

from __future__ import annotations

import asyncio
import base64
import random
import re
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

from agentrl.engines.scripted import Say
from agentrl.registry.references import load_object
from agentrl.tools.base import Environment, ToolResult, tool
from agentrl.tools.builtin.web.launching import find_chromium
from agentrl.types.errors import RecipeError, ToolError
from agentrl.types.task import Message, Task

HERE = Path(__file__).parent
pages = load_object("./pages.py:pages", HERE)
folder = load_object("./pages.py:folder", HERE)
full = load_object("./listing.py:full", HERE)
compact = load_object("./listing.py:compact", HERE)
key = load_object("./listing.py:key", HERE)
text_of = load_object("./oracle/view.py:text_of", HERE)
FAMILIES: dict[str, Any] = load_object("./families.py:FAMILIES", HERE)

SEEDS = {"train": 0, "held-out": 1_000_000}
"""The first seed of a split: train and held-out seeds never meet."""

HELD_OUT = ("click-tab", "enter-text", "use-slider-2", "drag-shapes", "email-inbox-star-reply", "find-word")


def tasks(
    families: str | Sequence[str] = "solved", split: str = "train", seeds: int = 16, first: int = 0
) -> Iterator[Task]:
    """Page families x seeds, a seed of every family in turn.

    Args:
        families: names of pages, or `solved` (those that the oracle solves), `held-in` and `held-out` (of these, all
            but the families of HELD_OUT, and these), or `all`.
        split: `train` or `held-out`: which seeds.
        seeds: of each family.
        first: number of the first seed within the split.

    Raises:
        RecipeError: there is no such page or split.
    """
    if split not in SEEDS:
        raise RecipeError(f"there is no split {split!r}", remedy=f"there are: {', '.join(SEEDS)}")
    for seed in range(SEEDS[split] + first, SEEDS[split] + first + seeds):
        for family in named(families):
            yield Task.of(f"{family}/{seed}", [], family=family, seed=seed)


def named(families: str | Sequence[str]) -> list[str]:
    """The names of a choice of families."""
    solved = [name for name, family in FAMILIES.items() if family.solver]
    choices: dict[str, list[str]] = {
        "all": list(FAMILIES),
        "solved": solved,
        "held-in": [name for name in solved if name not in HELD_OUT],
        "held-out": [name for name in solved if name in HELD_OUT],
    }
    if isinstance(families, str):
        return choices[families] if families in choices else named([families])
    for name in families:
        if name not in FAMILIES:
            raise RecipeError(f"MiniWoB++ has no page {name!r}", remedy=f"see {folder()}")
    return list(families)


class MiniWob(Environment):
    """One page. Elements are clicked by number, points by coordinates.

    Args:
        observe: `dom` (every visible element with its place), `compact` (a short line for each element that shows a
            text or takes input), `pixels` (a screenshot) or `both` (`dom` and a screenshot).
    """

    forkable = False
    timeout_s = 30.0
    info = {"raw": -1.0, "done": False}

    def __init__(self, observe: str = "dom") -> None:
        if observe not in TOOLS:
            raise RecipeError(f"observe is {observe!r}", remedy=f"there are: {', '.join(TOOLS)}")
        self.observe, self.page, self.state = observe, None, {}
        folder()
        find_chromium()

    async def open(self, task: Task, sandbox: Any) -> None:
        self.family = task.data["family"]
        self.page = await pages().take(self.family)
        self.state = await self.page.start(self.family, str(task.data["seed"]), FAMILIES[self.family].in_place)

    def tools(self) -> Sequence[Any]:
        return [getattr(self, name) for name in TOOLS[self.observe]]

    async def opening(self) -> Any:
        pictures = [{"type": "image", "image": each} for each in await self._pictures()]
        return {"role": "user", "content": [self._shown(), *pictures]} if pictures else self._shown()

    @tool
    async def click(self, ref: int) -> ToolResult:
        """Click an element, by its number."""
        x, y = await self._point(ref)
        return await self._after(_click(x, y), at=[(x, y)])

    @tool
    async def type(self, text: str, ref: int | None = None) -> ToolResult:
        """Type a text: in place of what is in the element of this number, or, without one, where the cursor is."""
        write = ("write", {"text": text, "keys": True})
        if ref is None:
            return await self._after(write)
        x, y = await self._point(ref)
        return await self._after(_click(x, y), ("key", {"keys": "Control+a"}), write, at=[(x, y)])

    @tool
    async def select(self, ref: int, options: list[str]) -> ToolResult:
        """Choose these options of a list, by their texts."""
        missing = await self._evaluate("([ref, wanted]) => agentrl.select(ref, wanted)", [ref, options])
        if missing:
            raise ToolError(f"element {ref} has no option {missing[0]!r}")
        return await self._after()

    @tool
    async def key(self, keys: str) -> ToolResult:
        """Press a key or several together, such as Enter, ArrowDown or Control+c."""
        return await self._after(("key", {"keys": keys}))

    @tool
    async def left_click(self, x: int, y: int) -> ToolResult:
        """Click at a pixel."""
        return await self._after(_click(x, y), at=[(x, y)])

    @tool
    async def double_click(self, x: int, y: int) -> ToolResult:
        """Click twice at a pixel."""
        return await self._after(_click(x, y, count=2), at=[(x, y)])

    @tool
    async def mouse_move(self, x: int, y: int) -> ToolResult:
        """Move the mouse to a pixel."""
        return await self._after(("mouse_move", {"x": x, "y": y, "steps": 4}), at=[(x, y)])

    @tool
    async def left_click_drag(self, path: list[tuple[int, int]]) -> ToolResult:
        """Press the mouse at the first point of a path, move along it, and release at the last."""
        if not path:
            raise ToolError("the path has no points")
        return await self._after(("mouse_drag", {"path": path}), at=path)

    @tool
    async def scroll(self, x: int, y: int, down: int) -> ToolResult:
        """Turn the mouse's wheel at a pixel: so many pixels down, or up if negative."""
        wheel = ("wheel", {"x": x, "y": y, "dy": down})
        return await self._after(wheel, ("evaluate", {"script": "agentrl.still()"}), at=[(x, y)])

    @tool
    async def wait(self, seconds: float) -> ToolResult:
        """Wait, at most 10 seconds."""
        await asyncio.sleep(min(max(seconds, 0), 10))
        return await self._after()

    async def _point(self, ref: int) -> tuple[float, float]:
        """Where to click on an element."""
        point = await self._evaluate("ref => agentrl.point(ref)", ref)
        if point is None:
            raise ToolError(f"there is no element {ref}")
        return point[0], point[1]

    async def _after(self, *steps: tuple[str, dict[str, Any]], at: Sequence[tuple[float, float]] = ()) -> ToolResult:
        """What the page shows after these operations of the browser driver, which act at these points."""
        # What has come under the mouse the browser tells the page by a clock of its own, unless the mouse moves.
        moved = [("mouse_move", {"x": x, "y": y}) for x, y in at[-1:]]
        at = at if self.observe in SEEN else ()
        self.state = await self._evaluate("agentrl.shown()", before=[*steps, *moved])
        if self.state["done"]:
            self.info = {"raw": float(self.state["raw"]), "done": True}
            return ToolResult("The episode has ended.", done=True, points=at)
        text = "" if self.observe == "pixels" else self._shown()
        return ToolResult(text, images=await self._pictures(), points=at)

    def _shown(self) -> str:
        """The page as text: of a page that is seen as pixels, only the instruction."""
        if self.observe == "pixels":
            return str(self.state["utterance"])
        shown: str = compact(self.state) if self.observe == "compact" else full(self.state)
        return shown

    async def _pictures(self) -> list[bytes]:
        """The screenshot, if there is to be one."""
        if self.observe not in SEEN:
            return []
        (picture,) = await self.page.do(("screenshot", {"fast": True}))
        return [base64.b64decode(picture)]

    async def _evaluate(self, script: str, argument: Any = None, before: Sequence[Any] = ()) -> Any:
        return (await self.page.do(*before, ("evaluate", {"script": script, "arg": argument})))[-1]

    def state_key(self) -> str:
        return f"{self.family} {key(self.state)}"

    async def close(self) -> None:
        if self.page is not None:
            await pages().give_back(self.page)


def _click(x: float, y: float, count: int = 1) -> tuple[str, dict[str, Any]]:
    return "mouse_click", {"x": x, "y": y, "count": count}


ELEMENTS = ("click", "type", "select", "key")
POINTS = ("left_click", "double_click", "mouse_move", "left_click_drag", "scroll", "wait")
TOOLS = {
    "dom": (*ELEMENTS, *POINTS),
    "compact": ELEMENTS,
    "pixels": ("type", "key", *POINTS),
    "both": (*ELEMENTS, *POINTS),
}
"""What the policy may call, by what it observes."""

SEEN = ("pixels", "both")
"""What shows a screenshot."""


def raw(info: dict[str, Any]) -> float:
    """The page's own reward, from -1 to 1, without its discount for time; -1 if the page was not done, as when its time
    runs out."""
    return float(info["raw"])


def oracle(task: Task, rng: random.Random, messages: list[Message]) -> Generator[Say, list[Message], None]:
    """Solves the page by what it shows."""
    family = FAMILIES[task.data["family"]]
    if not family.solver:
        return
    yield from family.play(messages, rng)


def wild(task: Task, rng: random.Random, messages: list[Message]) -> Generator[Say, list[Message], None]:
    """Clicks anywhere, or any element that is shown."""
    for _ in range(10):
        refs = re.findall(r"^ *\[?(\d+)\b", text_of(messages[-1]), re.MULTILINE)
        if refs:
            yield Say(calls=[("click", {"ref": int(rng.choice(refs))})])
        else:
            yield Say(calls=[("left_click", {"x": rng.randrange(160), "y": rng.randrange(50, 210)})])


def empty(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Says that it is done without having done anything."""
    yield Say("Done.")


def junk(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Types where no cursor is and clicks beside the task: on the page's frame, which belongs to no element."""
    yield Say(calls=[("type", {"text": "".join(rng.choice("abcdefgh 0123") for _ in range(12))})])
    yield Say(calls=[("left_click", {"x": 1, "y": 1}), ("key", {"keys": "Enter"})])
    yield Say("Done.")
