"""Inputs that reach a branch of a parser: the question is the way to the branch, the reward what is left of it."""

from __future__ import annotations

import functools
import inspect
import itertools
import random
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from agentrl import Say, Task
from agentrl.registry.references import load_object
from agentrl.rewards import Scored, reward
from agentrl.rewards.checker import Checker
from agentrl.sandbox.helper import TooMuch
from agentrl.types.episode import Episode

HERE = Path(__file__).parent
branches = load_object("./trace.py:branches", HERE)
found = load_object("./trace.py:found", HERE)
ran = load_object("./trace.py:ran", HERE)

TARGETS = {
    "fnmatch:translate": "fnmatch:translate",
    "shlex:shlex.read_token": "shlex:split",
    "email._parseaddr:_parsedate_tz": "email.utils:parsedate_tz",
    "posixpath:normpath": "posixpath:normpath",
    "string:Template.substitute": "string:Template",
}
"""Functions of the standard library with branches, and what calls them with a text."""


def questions(
    targets: Sequence[str] = ("fnmatch:translate", "shlex:shlex.read_token", "email._parseaddr:_parsedate_tz"),
    seeds: Sequence[str] = ("abc",),
    held_out: bool = False,
    shown: bool = True,
) -> Iterator[Task]:
    """A task for each branch that no seed reaches, by turns; one in eight is held out.

    Args:
        targets: names in `TARGETS`.
        seeds: the inputs that are there already.
        shown: shows the slice of the function that leads to the branch, and not only its name and line.
    """
    pools = []
    for name in targets:
        covered = {line for seed in seeds for line in ran(name, TARGETS[name], seed)}
        open_ways = [way for way in branches(name) if way[-1] not in covered]
        pools.append([(name, way) for way in open_ways if (zlib.crc32(f"{name}{way}".encode()) % 8 == 0) == held_out])
    for name, way in (each for row in itertools.zip_longest(*pools) for each in row if each is not None):
        text = f"Write an input with which `{name}` runs line {way[-1]}."
        if shown:
            text += f" {seeds[0]!r} does not. On the way:\n\n{_slice(name, way)}"
        yield Task.of(f"{name}:{way[-1]}", text, target=name, entry=TARGETS[name], way=way)


def _slice(name: str, way: Sequence[int]) -> str:
    """The lines of a function on the way to a branch: its head, and each block's first line with the one before."""
    source, first = inspect.getsourcelines(found(name))
    wanted = sorted({first, *(line - 1 for line in way), *way})
    return "\n".join(f"{line}: {source[line - first].rstrip()}" for line in wanted)


@functools.cache
def _tracer() -> Checker:
    return Checker(str(HERE / "trace.py"))


@reward(source="R1-Fuzz, arXiv:2509.20384", bounds=(0, 1), verifier=True)
async def nearness(task: Task, episode: Episode, *, timeout_s: float = 2.0) -> float | Scored:
    """1 if the input runs the line, else 1 - d / n: d of the n blocks around the line, and itself, were not entered."""
    if not episode.answer:
        return 0.0
    way: Sequence[int] = task.data["way"]
    try:
        lines = {*await _tracer().ask(ran, task.data["target"], task.data["entry"], episode.answer, cpu_s=timeout_s)}
    except TooMuch as problem:
        return Scored(0.0, str(problem))
    entered = sum(1 for _ in itertools.takewhile(lines.__contains__, way))
    return entered / len(way)


async def reached(task: Task, episode: Episode) -> float:
    """1 if the input runs the line, else 0: what there is to learn from without the distance."""
    value: Any = await nearness(task, episode)
    return float(value == 1.0)


# --- scripts --------------------------------------------------------------------------------------------------------

PIECES = ("a", "[", "]", "!", "*", "?", "-", "'", '"', "\\", "#", " ", "1", "Mon, 1 Jan 2024", ":", "/", "..", "+0100")


def scribbler(task: Task, rng: random.Random) -> Iterator[Say]:
    """Puts pieces of syntax together."""
    yield Say(f"<answer>{''.join(rng.choice(PIECES) for _ in range(rng.randint(1, 4)))}</answer>")
