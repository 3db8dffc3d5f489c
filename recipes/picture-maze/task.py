"""Mazes that are seen, not read: every turn the policy gets a picture, and answers with one step."""

from __future__ import annotations

import random
import zlib
from collections.abc import Generator, Iterator
from typing import Any

from agentrl import Environment, Message, Observation, Reply, Say, Session, Task, ToolAgent

STEPS: dict[str, tuple[int, int]] = {"north": (0, -1), "east": (1, 0), "south": (0, 1), "west": (-1, 0)}
BACK = {"north": "south", "south": "north", "east": "west", "west": "east"}
FLOOR, WALL, PLAYER, GOAL = (225, 225, 225), (0, 0, 0), (230, 30, 30), (20, 150, 60)


def mazes(
    n: int = 4096,
    size: int = 3,
    extra_doors: tuple[int, int] = (2, 4),
    distance: tuple[int, int] = (2, 4),
    seed: int = 0,
    held_out: bool = False,
) -> Iterator[Task]:
    """`n` mazes of size x size rooms: a random spanning tree and some extra doors. A smaller `n` is their beginning.

    Args:
        extra_doors: doors beyond those of the tree, at least and at most: with more of them, more ways are open.
        distance: steps from the start to the goal, at least and at most.
        held_out: the tasks (one in eight, by a hash of doors, start and goal) that are for evaluation, not the rest.
    """
    made = number = 0
    while made < n:
        rng = random.Random(f"{seed}/{held_out}/{number}")
        doors = _maze(rng, size, rng.randint(*extra_doors))
        number += 1
        start, goal = _apart(rng, doors, size, distance)
        if (zlib.crc32(repr((doors, start, goal)).encode()) % 8 == 0) == held_out:
            yield Task.of(f"maze{seed}-{number}", [], size=size, doors=doors, start=start, goal=goal)
            made += 1


class Maze(Environment):
    """One maze, seen from above: the player red, the goal green, walls black.

    Args:
        room: pixels of a room, each way. Where that is a patch of the model's tower, a room is a token.
    """

    def __init__(self, room: int = 8) -> None:
        self.room = room

    def open(self, task: Task, sandbox: Any) -> None:
        self.task, self.at = task.data, task.data["start"]
        self.far = _distances(self.task["doors"], self.task["goal"], self.task["size"])

    def opening(self) -> Message:
        return {"role": "user", "content": [{"type": "image", "image": self.picture()}]}

    def respond(self, reply: Reply) -> Observation:
        """A reply is a way. At a wall the player stays, and after other words, too."""
        was, way = self.at, reply.text.strip()
        if way in self.task["doors"][was]:
            self.at = _next(was, way, self.task["size"])
        if self.arrived:  # its reward is the outcome
            return Observation("", images=[self.picture()], done=True)
        return Observation("", images=[self.picture()], rewards={"nearer": self.far[was] - self.far[self.at]})

    @property
    def arrived(self) -> bool:
        """Whether the player is at the goal."""
        return bool(self.at == self.task["goal"])

    def state_key(self) -> int:
        return int(self.at)

    def picture(self) -> Any:
        """The maze as a PIL image."""
        from PIL import Image, ImageDraw

        size, room = self.task["size"], self.room
        image = Image.new("RGB", (size * room, size * room), FLOOR)
        draw = ImageDraw.Draw(image)
        thick, inset = max(1, room // 8), room // 4
        for at, doors in enumerate(self.task["doors"]):
            left, top = at % size * room, at // size * room
            right, bottom = left + room - 1, top + room - 1
            walls = {
                "north": (left, top, right, top + thick - 1),
                "east": (right - thick + 1, top, right, bottom),
                "south": (left, bottom - thick + 1, right, bottom),
                "west": (left, top, left + thick - 1, bottom),
            }
            for way, wall in walls.items():
                if way not in doors:
                    draw.rectangle(wall, WALL)
            for here, colour in ((self.task["goal"], GOAL), (self.at, PLAYER)):
                if at == here:
                    draw.rectangle((left + inset, top + inset, right - inset, bottom - inset), colour)
        return image


class Glance(ToolAgent):
    """Has no memory: the prompt of a turn is the newest picture alone, in which everything can be seen."""

    async def run(self, session: Session) -> None:
        while session.outcome is None:
            await self.take_turn(session)
            shown = [message["content"] for message in session.messages if not isinstance(message["content"], str)]
            if session.outcome is None:
                picture = next(part for part in shown[-1] if part["type"] == "image")
                session.rewrite([{"role": "user", "content": [picture]}])


def reached(env: Maze) -> float:
    """1 if the player is at the goal."""
    return float(env.arrived)


def oracle(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Walks a shortest way."""
    yield from _walk(task, rng, knows_the_way=1.0)


def wild(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Walks at random."""
    yield from _walk(task, rng, knows_the_way=0.0)


def empty(task: Task, rng: random.Random) -> Iterator[Say]:
    """Says nothing."""
    while True:
        yield Say("")


def junk(task: Task, rng: random.Random) -> Iterator[Say]:
    """Talks about the maze, and names a way that does not exist."""
    while True:
        yield Say("The goal is green.")
        yield Say("north east")
        yield Say(str(task.data["goal"]))


def _walk(task: Task, rng: random.Random, knows_the_way: float) -> Generator[Say, list[Message], None]:
    at, goal, doors, size = (task.data[name] for name in ("start", "goal", "doors", "size"))
    far = _distances(doors, goal, size)
    while True:
        way = rng.choice(list(STEPS))
        if rng.random() < knows_the_way:
            way = rng.choice([way for way in doors[at] if far[_next(at, way, size)] < far[at]])
        if way in doors[at]:
            at = _next(at, way, size)
        yield Say(way)


def _next(at: int, way: str, size: int) -> int:
    across, down = STEPS[way]
    return at + across + size * down


def _maze(rng: random.Random, size: int, extra: int) -> list[list[str]]:
    """The ways out of each room, row by row."""
    doors: list[list[str]] = [[] for _ in range(size * size)]
    walls = [(at, "east") for at in range(size * size) if at % size < size - 1]
    walls += [(at, "south") for at in range(size * size - size)]
    rng.shuffle(walls)
    group = list(range(size * size))
    for at, way in walls:
        other = _next(at, way, size)
        joined = group[at] == group[other]
        if joined and extra <= 0:
            continue
        extra -= joined
        group = [group[at] if each == group[other] else each for each in group]
        doors[at].append(way)
        doors[other].append(BACK[way])
    return [sorted(ways) for ways in doors]


def _distances(doors: list[list[str]], goal: int, size: int) -> dict[int, int]:
    """Steps from each room to the goal."""
    found, queue = {goal: 0}, [goal]
    for at in queue:
        for other in (_next(at, way, size) for way in doors[at]):
            if other not in found:
                found[other] = found[at] + 1
                queue.append(other)
    return found


def _apart(rng: random.Random, doors: list[list[str]], size: int, distance: tuple[int, int]) -> tuple[int, int]:
    """A start and a goal: a distance first, so that rare ones are as frequent as others, where the maze has them."""
    pairs: dict[int, list[tuple[int, int]]] = {}
    for goal in range(size * size):
        for start, far in _distances(doors, goal, size).items():
            if distance[0] <= far <= distance[1]:
                pairs.setdefault(far, []).append((start, goal))
    if not pairs:
        raise ValueError(
            f"no two of {size * size} rooms are {distance[0]} to {distance[1]} steps apart: widen distance"
        )
    return rng.choice(pairs[rng.choice(sorted(pairs))])
