"""Missions in the grids of BabyAI, seen as text: go to it, pick it up, open it, put it beside another thing."""

from __future__ import annotations

import itertools
import random
from collections.abc import Generator, Iterator, Sequence
from typing import Any

from agentrl import Message, Say, Task
from agentrl.tools.builtin.games.libraries import require
from agentrl.tools.builtin.games.play import Play, Step
from agentrl.types.errors import TaskError

MOVES = ("left", "right", "forward", "pickup", "drop", "toggle")
STATES = ("open", "closed", "locked")
HELD_OUT = 1_000_000

Image = list[list[list[int]]]
"""Kind, colour and state of the 7 x 7 cells, by column and row."""


def missions(
    level: str | Sequence[str] = "GoToLocal", n: int = 512, held_out: bool = False, view: str = "words"
) -> Iterator[Task]:
    """`n` missions; several levels take turns.

    Args:
        level: names of BabyAI's levels (`GoToLocal`, or with version `BabyAI-GoToLocal-v0`), or `all`.
        held_out: seeds that are kept for evaluation.
        view: `words` (what is seen, and where), or `map` (a letter a cell, the player at the bottom).
    """
    require("minigrid", "minigrid")
    levels = _levels()
    names = [*levels] if level == "all" else [level] if isinstance(level, str) else [*level]
    if (
        unknown := next((name for name in names if name not in levels and name not in levels.values()), None)
    ) is not None:
        raise TaskError(f"BabyAI has no level {unknown!r}", remedy=f"there are: all, {', '.join(levels)}")
    if view not in VIEWS:
        raise TaskError(f"view is {view!r}", remedy=f"one of: {', '.join(VIEWS)}")
    for number in range(n):
        name, seed = names[number % len(names)], number // len(names) + (HELD_OUT if held_out else 0)
        kwargs = {"level": levels.get(name, name), "view": view}
        yield Task.of(f"{name}-{seed}", [], seed=seed, game={"kwargs": kwargs})


def _levels() -> dict[str, str]:
    """The ids of all levels, by their short names."""
    import gymnasium
    import minigrid  # noqa: F401  # it adds its levels

    return {id.removeprefix("BabyAI-").rpartition("-")[0]: id for id in gymnasium.registry if id.startswith("BabyAI-")}


class Grid(Play):
    """One mission. The player sees 7 x 7 cells: itself in the middle of the last row, and what is in front of it."""

    def __init__(self, level: str, view: str = "words") -> None:
        self.level, self.view = level, VIEWS[view]

    @property
    def env(self) -> Grid:
        """This object, whose `key` is the state."""
        return self

    def reset(self, seed: int) -> str:
        """The mission, and what is seen."""
        self.grid = opened(self.level)
        self.inner = self.grid.unwrapped
        seen, _ = self.grid.reset(seed=seed)
        return f"Your mission: {seen['mission']}.\n{self._shown(seen)}"

    async def step(self, action: str) -> Step:
        """Makes a move. A thread would take longer than it does."""
        seen, reward, won, over, _ = self.grid.step(MOVES.index(action.strip()))
        return Step(self._shown(seen), float(reward), bool(won or over), bool(reward > 0))

    def close(self) -> None:
        """Closes the level."""
        self.grid.close()

    def key(self) -> str:
        """What is in the grid and where, the player, and what remains of the mission."""
        inner = self.inner
        done = [[each.a_done, each.b_done] for each in _sequences(inner.instrs)]
        things = [(i, *cell.encode()) for i, cell in enumerate(inner.grid.grid) if cell and cell.type != "wall"]
        where = *(int(part) for part in inner.agent_pos), int(inner.agent_dir)
        return f"{things} {where} {carried(inner)} {done}"

    def _shown(self, seen: dict[str, Any]) -> str:
        return f"{self.view(seen['image'].tolist())}\nYou carry {carried(self.inner) or 'nothing'}."


def opened(level: str) -> Any:
    """A level, not begun."""
    import gymnasium
    from minigrid.envs.babyai.core import roomgrid_level

    vars(roomgrid_level)["print"] = lambda *words: None  # it says which grids it draws again
    return gymnasium.make(level)


def _sequences(instructions: Any) -> Iterator[Any]:
    """The parts of a mission that say what has been done already."""
    if hasattr(instructions, "a_done"):
        yield instructions
    for part in ("instr_a", "instr_b"):
        if hasattr(instructions, part):
            yield from _sequences(getattr(instructions, part))


def carried(inner: Any) -> str:
    """What the player of an unwrapped level carries; empty if nothing."""
    return f"a {inner.carrying.color} {inner.carrying.type}" if inner.carrying else ""


def in_words(image: Image) -> str:
    """Things by distance, with where they are; then how far it is free."""
    from minigrid.core.constants import IDX_TO_OBJECT

    found: list[tuple[int, int, str]] = []
    for ahead in range(7):
        for x in range(7):
            name, aside = IDX_TO_OBJECT[image[x][6 - ahead][0]], x - 3
            if name not in ("unseen", "empty", "floor", "wall") and (ahead or aside):
                found.append((ahead + abs(aside), aside, f"{_named(image[x][6 - ahead])} {_where(ahead, aside)}"))
    things = "; ".join(text for _, _, text in sorted(found)) or "nothing"
    ways = {"ahead": (0, -1), "to the left": (-1, 0), "to the right": (1, 0)}
    free = ", ".join(f"{_free(image, *way)} {name}" for name, way in ways.items())
    return f"You see {things}. Free cells: {free}."


def _named(cell: Sequence[int]) -> str:
    from minigrid.core.constants import IDX_TO_COLOR, IDX_TO_OBJECT

    kind, colour, state = IDX_TO_OBJECT[cell[0]], IDX_TO_COLOR[cell[1]], STATES[cell[2]]
    words = f"{state} {colour} {kind}" if kind == "door" else f"{colour} {kind}"
    return f"{'an' if words[0] == 'o' else 'a'} {words}"


def _free(image: Image, right: int, down: int) -> int:
    """Cells that can be walked on, one after another, beginning beside the player."""
    from minigrid.core.constants import IDX_TO_OBJECT

    cells = ((3 + right * step, 6 + down * step) for step in range(1, 7))
    inside = (image[x][y] for x, y in cells if 0 <= x < 7 and 0 <= y < 7)
    walkable = (IDX_TO_OBJECT[c[0]] in ("empty", "floor", "goal") or _open_door(c) for c in inside)
    return sum(1 for _ in itertools.takewhile(bool, walkable))


def _open_door(cell: Sequence[int]) -> bool:
    from minigrid.core.constants import OBJECT_TO_IDX

    return bool(cell[0] == OBJECT_TO_IDX["door"] and STATES[cell[2]] == "open")


def _where(ahead: int, aside: int) -> str:
    parts = [f"{ahead} ahead"] if ahead else []
    if aside:
        parts.append(f"{abs(aside)} to the {'right' if aside > 0 else 'left'}")
    return " and ".join(parts)


def as_map(image: Image) -> str:
    """Seven rows, farthest first: `.` free, `#` wall, a blank unseen, `@` the player; else kind and colour."""
    from minigrid.core.constants import IDX_TO_COLOR, IDX_TO_OBJECT

    plain = {"unseen": "  ", "empty": ". ", "floor": ". ", "wall": "# "}

    def cell(x: int, y: int) -> str:
        kind, colour, state = image[x][y]
        if (x, y) == (3, 6):
            return "@ "
        name = IDX_TO_OBJECT[kind]
        if name in plain:
            return plain[name]
        letter = "_DL"[state] if name == "door" else {"key": "k", "ball": "o", "box": "b"}.get(name, "?")
        return letter + ("e" if IDX_TO_COLOR[colour] == "grey" else IDX_TO_COLOR[colour][0])

    return "\n".join("".join(cell(x, y) for x in range(7)).rstrip() for y in range(7))


VIEWS = {"words": in_words, "map": as_map}


# --- scripts --------------------------------------------------------------------------------------------------------


def oracle(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """BabyAI's own bot, which plays the same mission beside."""
    for move in _moves(task, rng):
        yield Say(calls=[("act", {"action": move})])


def guide(task: Task, rng: random.Random) -> Iterator[Say]:
    """The bot, for a game that is played by text."""
    for move in _moves(task, rng):
        yield Say(move)


def stroller(task: Task, rng: random.Random) -> Iterator[Say]:
    """The same, but eight moves of ten are turns and steps by chance: shows how moves are written, and little more."""
    for move in _moves(task, rng, by_chance=0.8):
        yield Say(move)


def _moves(task: Task, rng: random.Random, by_chance: float = 0.0) -> Iterator[str]:
    from minigrid.utils.baby_ai_bot import BabyAIBot

    grid = opened(task.data["game"]["kwargs"]["level"])
    grid.reset(seed=task.seed)
    bot, move, over = BabyAIBot(grid), None, False
    while not over:
        advice = int(bot.replan(move))
        move = rng.randrange(3) if rng.random() < by_chance else advice
        yield MOVES[move]
        _, _, won, late, _ = grid.step(move)
        over = won or late


def wild(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Any move; forward twice as often."""
    while True:
        yield Say(calls=[("act", {"action": rng.choice([*MOVES, "forward"])})])
