"""Games of textarena: for one player, and against an opponent who plays at random."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import reduce
from operator import xor
from typing import Any

from agentrl import Message, Say, Task
from agentrl.tools.builtin.games.libraries import require
from agentrl.tools.builtin.games.tasks import seeds
from agentrl.types.errors import TaskError

KINDS: dict[str, dict[str, Any]] = {
    "guess": {"id": "GuessTheNumber-v0"},
    "lake": {"id": "FrozenLake-v0-random"},
    "mastermind": {"id": "Mastermind-v0"},
    "nim": {"id": "Nim-v0", "kwargs": {"players": 2}},
}


def games(kinds: str | Sequence[str] = "all", n: int = 512, held_out: bool = False) -> Iterator[Task]:
    """`n` games; several kinds take turns.

    Args:
        kinds: one of `KINDS`, several, or `all`.
        held_out: seeds that are kept for evaluation.
    """
    require("textarena", "textarena")
    names = [*KINDS] if kinds == "all" else [kinds] if isinstance(kinds, str) else [*kinds]
    if (unknown := next((name for name in names if name not in KINDS), None)) is not None:
        raise TaskError(f"there is no kind {unknown!r}", remedy=f"there are: all, {', '.join(KINDS)}")
    for task in seeds(n=n, held_out=held_out, games={name: KINDS[name] for name in names}):
        yield Task.of(task.id, [], **task.data)


def opponent(seen: str, moves: Sequence[str], rng: random.Random) -> str:
    """Takes any number of stones from any pile of Nim."""
    pile, stones = rng.choice([(pile, stones) for pile, stones in _piles(seen).items() if stones])
    return f"[{pile} {rng.randint(1, stones)}]"


def _piles(seen: str) -> dict[int, int]:
    """Stones of each pile, as shown last."""
    return {int(pile): int(stones) for pile, stones in re.findall(r"pile (\d+): (\d+)", seen)}


# --- scripts --------------------------------------------------------------------------------------------------------

Player = Generator[str, str, None]
"""Yields moves, and gets what they led to."""


def _guess(seen: str) -> Player:
    low, high = 1, 20
    while True:
        middle = (low + high) // 2
        seen = yield f"[{middle}]"
        if "higher" in seen:
            low = middle + 1
        else:
            high = middle - 1


def _lake(seen: str) -> Player:
    rows = [line.strip().strip("|").split("|") for line in seen.splitlines() if line.strip().startswith("|")]
    cells = {(y, x): cell.strip() for y, row in enumerate(rows) for x, cell in enumerate(row)}
    start = next(place for place, cell in cells.items() if cell == "P")
    ways: dict[tuple[int, int], list[str]] = {start: []}
    queue = [start]
    for y, x in queue:
        if cells[y, x] == "G":
            for move in ways[y, x]:  # noqa: UP028  # a list takes nothing that is sent
                yield move
            return
        for step, place in (("up", (y - 1, x)), ("down", (y + 1, x)), ("left", (y, x - 1)), ("right", (y, x + 1))):
            if place not in ways and cells.get(place, "H") != "H":
                ways[place] = [*ways[y, x], f"[{step}]"]
                queue.append(place)


def _mastermind(seen: str) -> Player:
    left = [*itertools.permutations(range(1, 7), 4)]
    while left:
        guess = left[0]
        seen = yield f"[{' '.join(map(str, guess))}]"
        told = re.search(r"(\d) black peg.*?(\d) white peg", seen)
        if told is None:
            return
        pegs = (int(told[1]), int(told[2]))
        left = [code for code in left[1:] if _pegs(guess, code) == pegs]


def _pegs(guess: Sequence[int], code: Sequence[int]) -> tuple[int, int]:
    black = sum(one == other for one, other in zip(guess, code, strict=True))
    return black, len({*guess} & {*code}) - black


def _nim(seen: str) -> Player:
    while any((piles := _piles(seen)).values()):
        total = reduce(xor, piles.values())
        winning = [(pile, stones - (stones ^ total)) for pile, stones in piles.items() if stones ^ total < stones]
        pile, taken = winning[0] if winning else next((pile, 1) for pile, stones in piles.items() if stones)
        seen = yield f"[{pile} {taken}]"


PLAYERS: dict[str, Callable[[str], Player]] = {"guess": _guess, "lake": _lake, "mastermind": _mastermind, "nim": _nim}


def oracle(task: Task, rng: random.Random, messages: list[Message]) -> Generator[Say, list[Message], None]:
    """A player for each kind: bisects, walks the shortest way, guesses what is possible, leaves a nim-sum of 0."""
    player = PLAYERS[task.id.rstrip("0123456789")](_text(messages))
    move = next(player, None)
    while move is not None:
        seen = yield Say(calls=[("act", {"action": move})])
        try:
            move = player.send(_text(seen))
        except StopIteration:
            return


def wild(task: Task, rng: random.Random, messages: list[Message]) -> Generator[Say, list[Message], None]:
    """Moves at random, in the form that the game wants."""
    forms: dict[str, Callable[[str], str]] = {
        "guess": lambda seen: f"[{rng.randint(1, 20)}]",
        "lake": lambda seen: f"[{rng.choice(['up', 'down', 'left', 'right'])}]",
        "mastermind": lambda seen: f"[{' '.join(map(str, rng.sample(range(1, 7), 4)))}]",
        "nim": lambda seen: opponent(seen, (), rng),
    }
    seen = _text(messages)
    while True:
        heard = yield Say(calls=[("act", {"action": forms[task.id.rstrip("0123456789")](seen)})])
        seen = _text(heard)


def _text(messages: list[Message]) -> str:
    return str(messages[-1]["content"])
