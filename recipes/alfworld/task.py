"""ALFWorld: household tasks in text. A thing is found, cleaned, heated, cooled, lit, and put where it belongs."""

from __future__ import annotations

import functools
import itertools
import json
import os
import random
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from agentrl import Message, Say, Task
from agentrl.registry.references import load_object
from agentrl.tools.builtin.games.play import Play
from agentrl.types.errors import TaskError

HERE = Path(__file__).parent
KINDS = load_object("./rooms.py:KINDS", HERE)
generated = load_object("./rooms.py:game", HERE)
LIST: str = load_object("./engine.py:LIST", HERE)
Engine = load_object("./engine.py:House", HERE)
require_engine = load_object("./engine.py:require_engine", HERE)
way = load_object("./way.py:way", HERE)
HELD_OUT = 1_000_000


def chores(
    kind: str | Sequence[str] = "all",
    n: int = 512,
    held_out: bool = False,
    games: Literal["generated", "recorded"] | None = None,
    moves: bool = True,
) -> Iterator[Task]:
    """`n` games; several kinds take turns.

    Args:
        kind: one of `KINDS`, several, or `all`.
        held_out: rooms that ALFRED holds out (of the recorded games: `valid_unseen`).
        games: `generated` in the rooms of ALFRED, or `recorded`: those of ALFWorld's data, in `ALFWORLD_DATA`. None:
            recorded if `ALFWORLD_DATA` holds `json_2.1.1`.
        moves: whether every observation lists the moves that are possible.

    Raises:
        TaskError: there is no such kind, or there are no recorded games.
        RecipeError: a package is not installed.
    """
    require_engine()
    kinds = [*KINDS] if kind == "all" else [kind] if isinstance(kind, str) else [*kind]
    if (unknown := next((each for each in kinds if each not in KINDS), None)) is not None:
        raise TaskError(f"ALFWorld has no task {unknown!r}", remedy=f"there are: all, {', '.join(KINDS)}")
    if games not in (None, "generated", "recorded"):
        raise TaskError(f"games is {games!r}", remedy="generated, or recorded")
    if games == "recorded" or (games is None and _data().is_dir()):
        return itertools.islice(_recorded(kinds, held_out, moves), n)
    return itertools.islice(_generated(kinds, held_out, moves), n)


def _generated(kinds: Sequence[str], held_out: bool, moves: bool) -> Iterator[Task]:
    for number in itertools.count(HELD_OUT if held_out else 0):
        for kind in kinds:
            kwargs = {"kind": kind, "rooms": "test" if held_out else "train", "moves": moves}
            yield Task.of(f"{kind}-{number}", [], seed=number, game={"kwargs": kwargs})


def _recorded(kinds: Sequence[str], held_out: bool, moves: bool) -> Iterator[Task]:
    """The games that ALFWorld plays: solvable, without things that are sliced or carried in others."""
    root = _data()
    if not root.is_dir():
        remedy = "alfworld-download, and ALFWORLD_DATA=the folder with json_2.1.1; or tasks.args.games=generated"
        raise TaskError(f"there are no recorded games: no folder {root}", remedy=remedy)
    split = "valid_unseen" if held_out else "train"
    files = [sorted((root / split).glob(f"{kind}-*/*/game.tw-pddl")) for kind in kinds]
    number = HELD_OUT if held_out else 0
    for file in (file for row in itertools.zip_longest(*files) for file in row if file is not None):
        name = file.parent.relative_to(root / split).as_posix()
        if "movable" in name or "Sliced" in name or not json.loads(file.read_text()).get("solvable"):
            continue
        yield Task.of(name, [], seed=number, game={"kwargs": {"file": str(file), "moves": moves}})
        number += 1


def _data() -> Path:
    """Where the recorded games are. The package sets ALFWORLD_DATA to `~/.cache/alfworld` if nobody did."""
    return Path(os.environ.get("ALFWORLD_DATA") or "~/.cache/alfworld").expanduser() / "json_2.1.1"


def house(moves: bool = True, file: str | None = None, kind: str = "", rooms: str = "train") -> Play:
    """A game from a file, or a generated one of a kind."""

    def game(seed: int) -> Mapping[str, Any]:
        made: Mapping[str, Any] = json.loads(Path(file).read_text()) if file else generated(kind, rooms, seed)
        return made

    made: Play = Engine(game, moves)
    return made


# --- scripts --------------------------------------------------------------------------------------------------------


def oracle(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """A way by one who knows where everything is."""
    for move in gold(json.dumps(task.data["game"]["kwargs"]), task.seed):
        yield Say(calls=[("act", {"action": move})])


@functools.cache
def gold(kwargs: str, seed: int) -> tuple[str, ...]:
    """The moves of `oracle`."""
    played: Any = house(**json.loads(kwargs))
    played.reset(seed)
    found = tuple(way(played.problem, played.facts, played.names))
    played.close()
    return found


def wild(task: Task, rng: random.Random, messages: list[Message]) -> Generator[Say, list[Message], None]:
    """Any of the moves that are listed."""
    while True:
        listed = str(messages[-1]["content"]).rpartition(LIST)[2]
        yield Say(calls=[("act", {"action": rng.choice(listed.split("; "))})])
