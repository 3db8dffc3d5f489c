"""The games of TextWorldExpress: a house is walked through, things are found, cooked, sorted, put away."""

from __future__ import annotations

import functools
import random
from collections.abc import Generator, Iterator, Sequence
from typing import Any, Literal

from agentrl import Message, Say, Task
from agentrl.tools.builtin.games.java import JavaGames, require_java
from agentrl.tools.builtin.games.libraries import require
from agentrl.tools.builtin.games.play import Play, Step
from agentrl.types.errors import TaskError

GAMES = ("cookingworld", "twc", "coin", "mapreader", "arithmetic", "sorting", "simonsays", "peckingorder")
FIRST = {"train": 0, "dev": 10_000, "test": 20_000}
SEEDS = 1000  # of each fold
LIST = "\nMoves: "


def games(
    game: str | Sequence[str] = "coin",
    n: int = 512,
    split: Literal["train", "dev", "test"] = "train",
    params: dict[str, int] | None = None,
    moves: bool = True,
) -> Iterator[Task]:
    """`n` games of a fold; several kinds take turns.

    Args:
        game: one of `GAMES`, several, or `all`.
        params: of the generator, e.g. `{numLocations: 3, includeDoors: 0}`; each game has its own, and defaults.
        moves: whether every observation lists the moves that are possible.
    """
    require("textworld_express", "textworld-express")
    require_java()
    kinds = GAMES if game == "all" else [game] if isinstance(game, str) else [*game]
    if (unknown := next((kind for kind in kinds if kind not in GAMES), None)) is not None:
        raise TaskError(f"TextWorldExpress has no game {unknown!r}", remedy=f"there are: all, {', '.join(GAMES)}")
    if split not in FIRST or n > SEEDS * len(kinds):
        raise TaskError(
            f"there are no {n} games of {split!r}", remedy=f"up to {SEEDS} seeds a game of train, dev, test"
        )
    for number in range(n):
        kind, seed = kinds[number % len(kinds)], FIRST[split] + number // len(kinds)
        written = ",".join(f"{name}={value}" for name, value in (params or {}).items())
        kwargs = {"game": kind, "params": written, "fold": split, "moves": moves}
        yield Task.of(f"{kind}{seed}", [], seed=seed, game={"kwargs": kwargs})


def _start() -> Any:
    from textworld_express import TextWorldExpressEnv

    return TextWorldExpressEnv(envStepLimit=10**9)  # the recipe's `max_turns` ends an episode


JAVA = JavaGames(_start, "textworld_express.textworld_express")


class Express(Play):
    """One game.

    Args:
        fold: train, dev or test: games of these have other objects, recipes and maps.
    """

    def __init__(self, game: str, params: str = "", fold: str = "train", moves: bool = True) -> None:
        self.game, self.params, self.fold, self.moves = game, params, fold, moves
        self.express: Any = None

    @property
    def env(self) -> Express:
        """This object, whose `key` is the state."""
        return self

    def reset(self, seed: int) -> str:
        """What is to be done, and the first look around."""
        self.express = JAVA.take()
        self.express.load(self.game, self.params)
        seen, self.info = self.express.reset(seed=seed, gameFold=self.fold)
        return self._shown(f"{self.info['taskDescription'].strip()}\n{seen.strip()}")

    async def step(self, action: str) -> Step:
        """Makes a move. What the game does not understand, it says. A thread would take longer than a move does."""
        seen, reward, done, self.info = self.express.step(action.strip())
        return Step(self._shown(seen.strip()), float(reward), bool(done), bool(self.info["tasksuccess"]))

    def close(self) -> None:
        """Leaves the environment to the next game."""
        if self.express is not None:
            JAVA.give(self.express)

    def key(self) -> str:
        """What a look around and into the bag would show, the score, and in `simonsays` what is to be done now."""
        said = self.info["observation"] if self.game == "simonsays" else ""
        return f"{self.info['look']}{self.info['inventory']}{self.info['score']}{said}"

    def _shown(self, text: str) -> str:
        return f"{text}{LIST}{'; '.join(sorted(self.info['validActions']))}" if self.moves else text


# --- scripts --------------------------------------------------------------------------------------------------------


def oracle(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """The gold path of the game's generator."""
    kwargs = task.data["game"]["kwargs"]
    for move in gold(kwargs["game"], kwargs["params"], kwargs["fold"], task.seed):
        yield Say(calls=[("act", {"action": move})])


@functools.cache
def gold(game: str, params: str, fold: str, seed: int, tries: int = 1) -> tuple[str, ...]:
    """A way to the end, the shortest of so many. The generator finds another one each time, of other length: here it is
    the same for one process."""
    found = []
    with JAVA.lent() as express:
        express.load(game, params)
        for _ in range(tries):
            express.reset(seed=seed, gameFold=fold, generateGoldPath=True)
            found.append(tuple(express.getGoldActionSequence()))
    return min(found, key=len)


def wild(task: Task, rng: random.Random, messages: list[Message]) -> Generator[Say, list[Message], None]:
    """Any of the moves that are listed."""
    while True:
        yield Say(calls=[("act", {"action": rng.choice(_listed(messages))})])


def guide(task: Task, rng: random.Random) -> Iterator[Say]:
    """The shortest of ten gold paths, for a game that is played by text."""
    kwargs = task.data["game"]["kwargs"]
    for move in gold(kwargs["game"], kwargs["params"], kwargs["fold"], task.seed, tries=10):
        yield Say(move)


def stroller(task: Task, rng: random.Random, messages: list[Message]) -> Generator[Say, list[Message], None]:
    """Any of the moves that are listed, for a game that is played by text."""
    while True:
        yield Say(rng.choice(_listed(messages)))


def _listed(messages: list[Message]) -> list[str]:
    return str(messages[-1]["content"]).rpartition(LIST)[2].split("; ")
