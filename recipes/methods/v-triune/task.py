"""Pictures to look at and to reason about: six sources, each sample with the verifiers that score it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw

from agentrl import Say, Task
from agentrl.registry.references import load_object
from agentrl.rewards.functions.boxes import boxes_in
from agentrl.types.episode import Episode

METHODS = Path(__file__).parents[1]
places: Callable[..., Iterator[Task]] = load_object("./ruig/task.py:places", METHODS)
load_views: Callable[[int], tuple[Path, list[Any]]] = load_object("./grounding/pages.py:views", METHODS.parent)
mazes: Callable[..., Iterator[Task]] = load_object("./picture-maze/task.py:mazes", METHODS.parent)
Maze = load_object("./picture-maze/task.py:Maze", METHODS.parent)

KINDS = {"link": "links", "button": "buttons", "textbox": "text fields", "checkbox": "checkboxes"}
Made = Iterator[Task]


def samples(n: int = 384, seed: int = 0, held_out: bool = False, pages: int = 256, sources: Sequence[str] = ()) -> Made:
    """The first `n` samples, the sources in turn.

    Args:
        held_out: pages, mazes and sums that are for evaluation.
        pages: how many are looked at; their screenshots are taken on first use.
        sources: names of `SOURCES`; default: all.
    """
    made = [SOURCES[name](seed=seed, held_out=held_out, pages=pages) for name in sources or SOURCES]
    for k in range(n):
        task = next(made[k % len(made)], None)
        if task is not None:
            yield task


def _sample(source: str, id: str, picture: Any, asked: str, **data: Any) -> Task:
    """A sample with its source, and the verifiers that score its answer and its form."""
    content = [{"type": "image", "image": picture}, asked]
    verifiers = [source, "boxed" if source in WITH_BOXES else "form"]
    return Task.of(f"{source}/{id}", [{"role": "user", "content": content}], source=source, verifiers=verifiers, **data)


# --- perception -----------------------------------------------------------------------------------------------------


def grounding(seed: int, held_out: bool, pages: int) -> Made:
    """The box of an element that an instruction names."""
    for task in places(n=10_000, seed=seed, held_out=held_out, pages=pages):
        _, picture, asked = task.instruction[0]["content"]
        yield _sample("grounding", task.id, picture["image"], asked["text"], box=task.data["box"])


def detection(seed: int, held_out: bool, pages: int) -> Made:
    """The boxes of all elements of a kind, where there are at most four."""
    for id, picture, kind, found in _of_kind(seed, held_out, pages):
        if len(found) <= 4:
            yield _sample("detection", id, picture, f"Mark all {KINDS[kind]}.", box=[one["box"] for one in found])


def counting(seed: int, held_out: bool, pages: int) -> Made:
    """The number of elements of a kind."""
    for id, picture, kind, found in _of_kind(seed, held_out, pages):
        yield _sample("counting", id, picture, f"How many {KINDS[kind]} are there?", answer=str(len(found)))


def ocr(seed: int, held_out: bool, pages: int) -> Made:
    """The words in a box."""
    for id, picture, _, found in _of_kind(seed, held_out, pages):
        one = next((one for one in found if 0 < len(one["name"]) <= 20), None)
        if one is not None:
            yield _sample("ocr", id, picture, f"What does {one['box']} say?", answer=one["name"])


def _of_kind(seed: int, held_out: bool, pages: int) -> Iterator[tuple[str, str, str, list[dict[str, Any]]]]:
    """Views with a kind of element that is on them: id, picture, kind, elements."""
    folder, views = load_views(pages)
    for task in places(n=10_000, seed=seed, held_out=held_out, pages=pages):
        picture = task.instruction[0]["content"][1]["image"]
        view = next(view for view in views if str(folder / view.file) == picture)
        kinds = sorted({one["role"] for one in view.elements} & set(KINDS))
        if kinds:
            kind = random.Random(f"{seed}/{task.id}").choice(kinds)
            yield task.id, picture, kind, [one for one in view.elements if one["role"] == kind]


# --- reasoning ------------------------------------------------------------------------------------------------------


def puzzle(seed: int, held_out: bool, pages: int) -> Made:
    """The steps from the red room of a maze to the green one."""
    for task in mazes(n=10_000, seed=seed, held_out=held_out):
        maze = Maze()
        maze.open(task, None)
        steps = str(maze.far[task.data["start"]])
        yield _sample("puzzle", task.id, maze.picture(), "How many steps is red from green?", answer=steps)


def maths(seed: int, held_out: bool, pages: int) -> Made:
    """A sum that is drawn."""
    for k in range(10_000):
        rng = random.Random(f"{seed}/{held_out}/{k}")
        a, b = rng.randint(1, 9), rng.randint(1, 9)
        picture = Image.new("RGB", (56, 28), "white")
        ImageDraw.Draw(picture).text((4, 8), f"{a} + {b} = ?", "black")
        yield _sample("maths", f"{held_out}-{k}", picture, "What is it?", answer=str(a + b))


SOURCES: dict[str, Callable[..., Made]] = {
    "grounding": grounding, "puzzle": puzzle, "detection": detection, "maths": maths, "counting": counting, "ocr": ocr,
}  # fmt: skip
WITH_BOXES = ("grounding", "detection")


def boxed(episode: Episode) -> float:
    """1 if the answer names a box."""
    return float(bool(boxes_in(episode.answer or "")))


def form(episode: Episode) -> float:
    """1 if there is an answer between the tags."""
    return float(bool(episode.answer) and "<answer>" in episode.turns[-1].text)


def solver(task: Task, rng: random.Random) -> Iterator[Say]:
    """Answers as the sample's data say; a list of boxes for several."""
    box = task.data.get("box")
    yield Say(f"<answer>{task.data['answer'] if box is None else box}</answer>")
