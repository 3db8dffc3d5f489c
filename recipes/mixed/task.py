"""Tasks of four recipes in turn: function calls, search, SQL, and a grid that is seen in words."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from agentrl import Environment, Message, Say, Task
from agentrl.registry.references import load_object
from agentrl.types.errors import TaskError

RECIPES = Path(__file__).parents[1]
corpus = load_object("./search-qa/fiction.py:corpus", RECIPES)
Desk = load_object("./bfcl/task.py:Desk", RECIPES)
valid = load_object("./bfcl/task.py:valid", RECIPES)
Grid = load_object("./babyai/task.py:Grid", RECIPES)

# The function that yields tasks of each source, its arguments, and the recipe's tools that they have.
SOURCES: Mapping[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "calls": ("bfcl/task.py:conversations", {"categories": ["base"], "rounds": 1, "others": 1}, ()),
    "search": ("search-qa/fiction.py:questions", {"hops": 1}, ("Nowhere", "search", "answer")),
    "sql": ("sql-chinook/task.py:questions", {"level": "easy"}, ("Nowhere", "sql", "answer")),
    "world": ("babyai/task.py:missions", {"level": "GoToLocal"}, ("game",)),
}
ORACLES = {
    "calls": "bfcl/task.py:oracle",
    "search": "search-qa/task.py:oracle",
    "sql": "sql-chinook/task.py:oracle",
    "world": "babyai/task.py:oracle",
}


def tasks(n: int = 256, held_out: bool = False, sources: Sequence[str] = tuple(SOURCES)) -> Iterator[Task]:
    """The first `n` tasks, the sources in turn.

    Args:
        held_out: tasks that are kept for evaluation, by each recipe's own split.
        sources: names of `SOURCES`.

    Raises:
        TaskError: there is no such source, or its package is not installed.
    """
    if (unknown := next((name for name in sources if name not in SOURCES), None)) is not None:
        raise TaskError(f"there is no source {unknown!r}", remedy=f"there are: {', '.join(SOURCES)}")
    pools = [_of(name, n, held_out) for name in sources]
    dealt = (task for row in itertools.zip_longest(*pools) for task in row if task is not None)
    return itertools.islice(dealt, n)


def _of(source: str, n: int, held_out: bool) -> Iterator[Task]:
    """Tasks of a source, with its name and its tools."""
    function, args, tools = SOURCES[source]
    for task in load_object(f"./{function}", RECIPES)(n=n, held_out=held_out, **args):
        data = {**task.data, "source": source}
        yield msgspec.structs.replace(task, data=data, tools=[*tools] if tools else task.tools)


class Nowhere(Environment):
    """No place at all. A task that names it opens none of the other environments."""


def oracle(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """The oracle of the task's own recipe."""
    play: Callable[..., Generator[Say, list[Message], None]] = load_object(f"./{ORACLES[task.data['source']]}", RECIPES)
    return (yield from play(task, rng))
