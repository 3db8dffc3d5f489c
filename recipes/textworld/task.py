"""Games that TextWorld generates: a coin or a treasure is looked for, a meal is cooked, or any quest is followed."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentrl import Message, Say, Task
from agentrl.registry.references import load_object
from agentrl.tools.builtin.games.libraries import require
from agentrl.types.errors import TaskError

HERE = Path(__file__).parent
LIST: str = load_object("./story.py:LIST", HERE)
Story = load_object("./story.py:Story", HERE)
HELD_OUT = 1_000_000

KINDS: dict[str, tuple[str, dict[str, Any]]] = {  # the generator's name of each, and its settings
    "cooking": (
        "cooking",
        {"recipe": 1, "take": 1, "go": 1, "open": True, "cook": True, "cut": True, "drop": False, "recipe_seed": 0},
    ),
    "coin": ("coin_collector", {"level": 5}),
    "treasure": ("treasure_hunter", {"level": 5}),
    "custom": ("custom", {"rooms": 5, "objects": 10, "quest": 4}),
}


def games(
    game: str | Sequence[str] = "all",
    n: int = 128,
    held_out: bool = False,
    settings: Mapping[str, Any] | None = None,
    detailed: bool = False,
    moves: bool = True,
) -> Iterator[Task]:
    """`n` games, a seed each; several kinds take turns.

    Args:
        game: one of `KINDS`, several, or `all`.
        held_out: other seeds; in `cooking` also food that training does not have.
        settings: of the generator, in place of those in `KINDS`, e.g. `{level: 10}` or `{recipe: 3, take: 3, go: 6}`.
        detailed: whether the player is told each step to the goal (not in `cooking`).
        moves: whether every observation lists the moves that are possible.

    Raises:
        TaskError: there is no such game or setting.
        RecipeError: a package is not installed.
    """
    require(
        "textworld jericho tatsu hashids mementos more_itertools termcolor networkx prompt_toolkit tqdm",
        "--no-deps textworld jericho && pip install "
        "tatsu hashids mementos more-itertools termcolor networkx prompt_toolkit tqdm",
    )
    kinds = [*KINDS] if game == "all" else [game] if isinstance(game, str) else [*game]
    if (unknown := next((kind for kind in kinds if kind not in KINDS), None)) is not None:
        raise TaskError(f"TextWorld has no game {unknown!r}", remedy=f"there are: all, {', '.join(KINDS)}")
    known = {key for kind in kinds for key in KINDS[kind][1]}
    if (unknown := next((key for key in settings or {} if key not in known), None)) is not None:
        raise TaskError(f"{', '.join(kinds)}: there is no setting {unknown!r}", remedy=f"there are: {', '.join(known)}")
    for number in range(n):
        kind, seed = kinds[number % len(kinds)], number // len(kinds) + (HELD_OUT if held_out else 0)
        name, default = KINDS[kind]
        wanted = {**default, **{key: value for key, value in (settings or {}).items() if key in default}}
        if kind == "cooking":
            wanted["split"] = "test" if held_out else "train"
        kwargs = {"kind": name, "settings": wanted, "detailed": detailed, "moves": moves}
        yield Task.of(f"{kind}-{seed}", [], seed=seed, game={"kwargs": kwargs})


# --- scripts --------------------------------------------------------------------------------------------------------


def oracle(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """The way that TextWorld itself finds."""
    for move in gold(json.dumps(task.data["game"]["kwargs"]), task.seed):
        yield Say(calls=[("act", {"action": move})])


@functools.cache
def gold(kwargs: str, seed: int) -> tuple[str, ...]:
    """The moves of `oracle`: the same game is played beside, and asked for its next move each time."""
    story = Story(**json.loads(kwargs))
    story.reset(seed)
    found: list[str] = []
    done = False
    while not done and (policy := story.policy()):
        found.append(policy[0])
        done = story.step(policy[0]).done
    story.close()
    return tuple(found)


def wild(task: Task, rng: random.Random, messages: list[Message]) -> Generator[Say, list[Message], None]:
    """Any of the moves that are listed."""
    while True:
        listed = str(messages[-1]["content"]).rpartition(LIST)[2]
        yield Say(calls=[("act", {"action": rng.choice(listed.split("; "))})])
