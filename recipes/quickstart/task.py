"""The house: small mazes of real folders, walked with a real shell.

Each task is one maze. A room is a folder; its doors are links named north, east, south and west; one room holds a
file named `flag`. The policy starts with nothing but the format of a call and learns the way by trying.
"""

from __future__ import annotations

import io
import random
import tarfile
from collections.abc import Generator, Iterator
from typing import Any, Literal

from agentrl import Message, Say, Task, Tool, ToolResult, tool

Door = Literal["north", "east", "south", "west"]
STEPS: dict[str, tuple[int, int]] = {"north": (0, -1), "east": (1, 0), "south": (0, 1), "west": (-1, 0)}
BACK = {"north": "south", "south": "north", "east": "west", "west": "east"}


def houses(mazes: int = 8, size: int = 4, extra_doors: int = 4, distance: int = 5, seed: int = 0) -> Iterator[Task]:
    """Mazes of size x size rooms: a random spanning tree plus some extra doors, the flag exactly `distance` away.

    Exactly, because a maze whose flag nobody finds by chance teaches nothing: at 5, who wanders finds it within 20
    moves one time in five to twenty; at 8, one time in a hundred.
    """
    for number in range(mazes):
        rng = random.Random(f"{seed}/{number}")
        doors = _maze(rng, size, extra_doors, first_room=number * size * size)
        start, goal = _far_apart(rng, doors, distance)
        yield Task.of(f"maze{number}", f"Find the flag. You are in {start}.", doors=doors, start=start, goal=goal)


class House(Tool):
    """The maze as folders in the sandbox, and a shell session that walks it."""

    needs_sandbox = True

    async def open(self, task: Task, sandbox: Any) -> None:
        await sandbox.exec(["tar", "xf", "-"], stdin=_folders(task), cwd="/work", timeout_s=20)
        self.shell = await sandbox.session()
        self.room = await self._run(f"cd -P /work/house/{task.data['start']}; test -e flag")

    @tool
    async def cd(self, door: Door) -> ToolResult:
        """Go through a door."""
        if self.code == 0:  # a second call in the turn that found the flag does not lose it again
            return ToolResult(self.room, done=True)
        before = self.room
        self.room = await self._run(f"cd -P {door} 2>/dev/null; test -e flag")
        text = self.room if self.room != before else f"wall, {self.room}"
        return ToolResult(text, done=self.code == 0)

    @tool
    async def look(self) -> str:
        """List the room."""
        result = await self.shell.run("ls", timeout_s=20)
        return " ".join(result.text.split())

    def state_key(self) -> str:
        return self.room

    async def _run(self, command: str) -> str:
        self.code = (await self.shell.run(command, timeout_s=20)).code
        return (await self.shell.cwd()).rsplit("/", 1)[-1]


async def reached(task: Task, sandbox: Any) -> float:
    """1 if the shell stands in the flag's room. The kernel says where it stands, not the shell's output."""
    return float((await (await sandbox.session()).cwd()).endswith(f"/house/{task.data['goal']}"))


def wanderer(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Demonstrates the format only: nine moves in ten are random."""
    yield from _walk(task, rng, knows_the_way=0.1)


def oracle(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Walks the shortest way."""
    yield from _walk(task, rng, knows_the_way=1.0)


def wild(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Walks at random."""
    yield from _walk(task, rng, knows_the_way=0.0)


def _walk(task: Task, rng: random.Random, knows_the_way: float) -> Generator[Say, list[Message], None]:
    doors, room = task.data["doors"], task.data["start"]
    while True:
        sure = rng.random() < knows_the_way
        if not sure and rng.random() < 0.03:
            yield Say(calls=[("look", {})])
            continue
        door = _way(doors, room, task.data["goal"])[0] if sure else rng.choice(list(STEPS))
        seen = yield Say(calls=[("cd", {"door": door})])
        room = str(seen[-1]["content"]).split()[-1]


def _maze(rng: random.Random, size: int, extra: int, first_room: int) -> dict[str, dict[str, str]]:
    cells = [(x, y) for y in range(size) for x in range(size)]
    name = {cell: f"room{first_room + index}" for index, cell in enumerate(cells)}
    doors: dict[str, dict[str, str]] = {name[cell]: {} for cell in cells}
    walls = [
        (cell, door, (cell[0] + dx, cell[1] + dy))
        for cell in cells
        for door, (dx, dy) in STEPS.items()
        if door in ("east", "south") and (cell[0] + dx, cell[1] + dy) in name
    ]
    rng.shuffle(walls)
    group = {cell: cell for cell in cells}

    def root(cell: tuple[int, int]) -> tuple[int, int]:
        while group[cell] != cell:
            cell = group[cell]
        return cell

    for cell, door, other in walls:
        joined = root(cell) == root(other)
        if joined and extra <= 0:
            continue
        extra -= joined
        group[root(cell)] = root(other)
        doors[name[cell]][door] = name[other]
        doors[name[other]][BACK[door]] = name[cell]
    return doors


def _way(doors: dict[str, dict[str, str]], start: str, goal: str) -> list[str]:
    """The doors of a shortest way."""
    ways: dict[str, list[str]] = {start: []}
    queue = [start]
    for room in queue:
        for door, other in doors[room].items():
            if other not in ways:
                ways[other] = [*ways[room], door]
                queue.append(other)
    return ways[goal]


def _far_apart(rng: random.Random, doors: dict[str, dict[str, str]], distance: int) -> tuple[str, str]:
    pairs = [(a, b) for a in doors for b in doors if len(_way(doors, a, b)) == distance]
    return rng.choice(pairs)


def _folders(task: Task) -> bytes:
    """The maze as a tar archive."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for room, doors in task.data["doors"].items():
            folder = tarfile.TarInfo(f"house/{room}")
            folder.type, folder.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(folder)
            for door, other in doors.items():
                link = tarfile.TarInfo(f"house/{room}/{door}")
                link.type, link.linkname = tarfile.SYMTYPE, f"../{other}"
                tar.addfile(link)
        tar.addfile(tarfile.TarInfo(f"house/{task.data['goal']}/flag"))
    return out.getvalue()
