"""Rooms to furnish: a layout is checked, and its picture from above and its score are shown for the next one."""

from __future__ import annotations

import itertools
import json
import random
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from agentrl import Environment, Message, Observation, Reply, Say, Task
from agentrl.types.episode import Episode

SIZE, CELL, FLOOR = 4, 8, (225, 225, 225)
"""Cells of a room, each way, and pixels of a cell. Where that is a patch of the model's tower, a cell is a token."""

RED, BLUE, YELLOW = (200, 30, 30), (30, 60, 200), (240, 200, 20)
PIECES = {"bed": (2, 2, RED), "desk": (2, 1, BLUE), "lamp": (1, 1, YELLOW)}
"""Furniture: columns, rows and colour."""

WALLS = ("north", "east", "south", "west")
WEIGHTS = {"form": 0.5, "seen": 1.0, "overlap": -0.2, "misplaced": -0.2}
"""Parts of a layout's score."""

Layout = Mapping[str, Sequence[int]]
"""Column and row of the upper left cell of each piece."""


def wishes(n: int = 1024, seed: int = 0, held_out: bool = False) -> Iterator[Task]:
    """`n` wishes: the wall at which each piece shall stand. A layout that grants all of them comes with each.

    Args:
        held_out: layouts (one in eight, by a hash) that are for evaluation, not the rest.
    """
    made = (_wish(f"room{seed}-{number}", random.Random(f"{seed}/{number}")) for number in itertools.count())
    kept = (task for task in made if (zlib.crc32(repr(task.data["layout"]).encode()) % 8 == 0) == held_out)
    yield from itertools.islice(kept, n)


def _wish(id: str, rng: random.Random) -> Task:
    layout: dict[str, list[int]] = {}
    while overlap(layout) or not all(touched(name, layout.get(name, [-1, -1])) for name in PIECES):
        layout = {name: _anywhere(rng, name) for name in rng.sample(list(PIECES), len(PIECES))}
    walls = {name: rng.choice(touched(name, at)) for name, at in layout.items()}
    return Task.of(id, [], walls=walls, layout=layout)


def _anywhere(rng: random.Random, name: str) -> list[int]:
    return [rng.randint(0, SIZE - extent) for extent in PIECES[name][:2]]


def _cells(name: str, at: Sequence[int]) -> set[tuple[int, int]]:
    columns, rows, _ = PIECES[name]
    return {(at[0] + x, at[1] + y) for x in range(columns) for y in range(rows)}


def touched(name: str, at: Sequence[int]) -> list[str]:
    """Returns the walls that a piece stands at; none if it is not wholly in the room."""
    right, down = (SIZE - extent for extent in PIECES[name][:2])
    inside = 0 <= at[0] <= right and 0 <= at[1] <= down
    met = (at[1] == 0, at[0] == right, at[1] == down, at[0] == 0)
    return [wall for wall, there in zip(WALLS, met, strict=True) if there and inside]


def overlap(layout: Layout) -> float:
    """Share of the pairs of pieces that share a cell."""
    pairs = list(itertools.combinations(layout.items(), 2))
    return sum(bool(_cells(*one) & _cells(*other)) for one, other in pairs) / max(1, len(pairs))


def misplaced(layout: Layout, walls: Mapping[str, str]) -> float:
    """Share of the pieces that do not stand at their walls."""
    return sum(wall not in touched(name, layout[name]) for name, wall in walls.items()) / len(walls)


def picture(layout: Layout) -> Any:
    """Returns the room from above, as a PIL image; of two pieces in a cell the later one is seen."""
    from PIL import Image

    image = Image.new("RGB", (SIZE, SIZE), FLOOR)
    for name, at in layout.items():
        for x, y in _cells(name, at):
            if 0 <= x < SIZE and 0 <= y < SIZE:
                image.putpixel((x, y), PIECES[name][2])
    return image.resize((SIZE * CELL, SIZE * CELL), Image.Resampling.NEAREST)


def seen(image: Any, walls: Mapping[str, str]) -> float:
    """Mean share of a piece that the picture shows in the half of the room at its wall."""
    half, full = SIZE * CELL // 2, SIZE * CELL
    halves = ((0, 0, full, half), (half, 0, full, full), (0, half, full, full), (0, 0, half, full))
    boxes = dict(zip(WALLS, halves, strict=True))
    shares: list[float] = []
    for name, wall in walls.items():
        columns, rows, colour = PIECES[name]
        shown = sum(number for number, found in image.crop(boxes[wall]).getcolors() if found == colour)
        shares.append(shown / (columns * rows * CELL * CELL))
    return sum(shares) / len(shares)


def judged(reply: Reply, walls: Mapping[str, str]) -> tuple[dict[str, float], Layout]:
    """Returns the parts of a reply's score and its layout, which is empty unless it holds all pieces."""
    parts: dict[str, float] = dict.fromkeys(WEIGHTS, 0.0)
    if reply.text or reply.thought is None or reply.answer is None:
        return parts, {}
    try:
        layout = json.loads(reply.answer)
    except ValueError:
        layout = None
    if not isinstance(layout, dict):
        return {**parts, "form": 0.1}, {}
    if len(layout) != len(walls):
        return {**parts, "form": 0.5}, {}
    if layout.keys() != walls.keys() or not all(map(_is_cell, layout.values())):
        return {**parts, "form": 1.0}, {}
    found = {"seen": seen(picture(layout), walls), "overlap": overlap(layout), "misplaced": misplaced(layout, walls)}
    return {"form": 1.0, **found}, layout


def _is_cell(at: Any) -> bool:
    return isinstance(at, list) and len(at) == 2 and all(type(each) is int for each in at)


class Room(Environment):
    """A room: every reply is a layout, and the picture and the score of the last one are shown for the next.

    `info` holds the parts of the score of each layout, and whether the last one is sound.

    Args:
        layouts: how many a room gets.
    """

    def __init__(self, layouts: int = 3) -> None:
        self.layouts = layouts

    def open(self, task: Task, sandbox: Any) -> None:
        self.walls, self.image = task.data["walls"], picture({})
        self.info = {"parts": [], "sound": False}

    def opening(self) -> Message:
        wish = ", ".join(f"{name}: {wall}" for name, wall in self.walls.items())
        return {"role": "user", "content": [wish, {"type": "image", "image": self.image}]}

    def respond(self, reply: Reply) -> Observation:
        """Draws the layout; one that cannot be read leaves the picture as it was."""
        parts, layout = judged(reply, self.walls)
        self.image = picture(layout) if layout else self.image
        sound = bool(layout) and not parts["overlap"] and not parts["misplaced"]
        self.info = {"parts": [*self.info["parts"], parts], "sound": sound}
        score = sum(weight * parts[name] for name, weight in WEIGHTS.items())
        return Observation(f"Score: {score:.1f}", images=[self.image], done=len(self.info["parts"]) == self.layouts)


def discounted(episode: Episode, info: dict[str, Any], *, part: str, gamma: float = 0.9) -> float:
    """Mean of a part over the replies, each of which weighs `gamma` times the one before; without a layout it is 0."""
    weights = [gamma**k for k in range(len(episode.turns))]
    paid = [weight * parts[part] for weight, parts in zip(weights, info["parts"], strict=False)]
    return sum(paid) / sum(weights) if weights else 0.0


def sound(info: dict[str, Any]) -> float:
    """1 if no piece of the last layout overlaps another, and all stand where they were wished."""
    return float(info["sound"])


def oracle(task: Task, rng: random.Random) -> Iterator[Say]:
    """Grants the wishes at once."""
    yield from _furnish(task, rng, itertools.repeat(1.0))


def careless(task: Task, rng: random.Random) -> Iterator[Say]:
    """Places some pieces well, and more from layout to layout."""
    yield from _furnish(task, rng, (0.4, 0.7, 1.0))


def wild(task: Task, rng: random.Random) -> Iterator[Say]:
    """Places the pieces anywhere in the room."""
    yield from _furnish(task, rng, itertools.repeat(0.0))


def empty(task: Task, rng: random.Random) -> Iterator[Say]:
    """Says nothing."""
    while True:
        yield Say("")


def _furnish(task: Task, rng: random.Random, chances: Iterable[float]) -> Iterator[Say]:
    for chance in chances:
        own = task.data["layout"]
        layout = {name: at if rng.random() < chance else _anywhere(rng, name) for name, at in own.items()}
        yield Say(f"<think>{', '.join(layout)}</think><answer>{json.dumps(layout)}</answer>")
