"""Experiments of elementary science in ScienceWorld: find, mix, connect, boil, grow, measure."""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Generator, Iterator, Sequence
from typing import Any, Literal

from agentrl import Message, Say, Task
from agentrl.tools.builtin.games.java import JavaGames, require_java
from agentrl.tools.builtin.games.libraries import require
from agentrl.tools.builtin.games.play import Play, Step
from agentrl.types.errors import TaskError

VARIATIONS = {  # of scienceworld 1.2.3; to ask the package would start Java
    "boil": 30,
    "change-the-state-of-matter-of": 30,
    "chemistry-mix": 32,
    "chemistry-mix-paint-secondary-color": 36,
    "chemistry-mix-paint-tertiary-color": 36,
    "find-animal": 300,
    "find-living-thing": 300,
    "find-non-living-thing": 300,
    "find-plant": 300,
    "freeze": 30,
    "grow-fruit": 126,
    "grow-plant": 126,
    "identify-life-stages-1": 14,
    "identify-life-stages-2": 10,
    "inclined-plane-determine-angle": 168,
    "inclined-plane-friction-named-surfaces": 1386,
    "inclined-plane-friction-unnamed-surfaces": 162,
    "lifespan-longest-lived": 125,
    "lifespan-longest-lived-then-shortest-lived": 125,
    "lifespan-shortest-lived": 125,
    "measure-melting-point-known-substance": 436,
    "measure-melting-point-unknown-substance": 300,
    "melt": 30,
    "mendelian-genetics-known-plant": 120,
    "mendelian-genetics-unknown-plant": 480,
    "power-component": 20,
    "power-component-renewable-vs-nonrenewable-energy": 20,
    "test-conductivity": 900,
    "test-conductivity-of-unknown-substances": 600,
    "use-thermometer": 540,
}
QUICK = (
    "find-animal",
    "find-living-thing",
    "find-non-living-thing",
    "find-plant",
    "lifespan-longest-lived",
    "lifespan-longest-lived-then-shortest-lived",
    "lifespan-shortest-lived",
    "power-component",
    "power-component-renewable-vs-nonrenewable-energy",
)
GROUPS = {"all": (*VARIATIONS,), "quick": QUICK}
QUARTERS = {"train": (0, 2), "dev": (2, 3), "test": (3, 4)}  # the package's splits of the variations of a task


def experiments(
    task: str | Sequence[str] = "quick",
    n: int = 512,
    split: Literal["train", "dev", "test"] = "train",
    simplified: str = "easy",
) -> Iterator[Task]:
    """Up to `n` variations of a split of the package; several tasks take turns.

    Args:
        task: names of ScienceWorld's tasks, `all` 30, or `quick`: nine that open within a second and need few moves.
        simplified: ScienceWorld's simplifications, by comma; `easy` is all of them.
    """
    require("scienceworld", "scienceworld")
    require_java()
    names = GROUPS.get(task, (task,)) if isinstance(task, str) else task
    if (unknown := next((name for name in names if name not in VARIATIONS), None)) is not None:
        remedy = f"there are: {', '.join((*GROUPS, *VARIATIONS))}"
        raise TaskError(f"ScienceWorld has no task {unknown!r}", remedy=remedy)
    if split not in QUARTERS:
        raise TaskError(f"there is no split {split!r}", remedy="train, dev or test")
    folds = [fold(name, split) for name in names]
    in_turn = sorted((turn, kind) for kind, found in enumerate(folds) for turn in range(len(found)))
    for turn, kind in in_turn[:n]:
        kwargs = {"task": names[kind], "variation": folds[kind][turn], "simplified": simplified}
        yield Task.of(f"{names[kind]}-{folds[kind][turn]}", [], seed=folds[kind][turn], game={"kwargs": kwargs})


def fold(task: str, split: str) -> range:
    """The variations of a split of a task."""
    total = VARIATIONS[task]
    first, last = QUARTERS[split]
    return range(first * (total // 4), total if last == 4 else last * (total // 4))


def _start() -> Any:
    from scienceworld import ScienceWorldEnv

    return ScienceWorldEnv("")


JAVA = JavaGames(_start, "scienceworld.scienceworld")


class Laboratory(Play):
    """One experiment. Its score goes from 0 to 1; what cannot be mended ends it with -1.

    The server is called itself: the package's `step` lists all moves that are possible each time, for a second.
    """

    def __init__(self, task: str, variation: int, simplified: str = "easy") -> None:
        self.task, self.variation, self.simplified = task, variation, simplified
        self.world: Any = None
        self.score = 0.0
        self.question = ""

    @property
    def env(self) -> Laboratory:
        """This object, whose `key` is the state."""
        return self

    def reset(self, seed: int) -> str:
        """What is to be done, the forms of moves, and the first look around."""
        self.world = JAVA.take()
        self.world.load(self.task, self.variation, self.simplified)
        task, forms = self.world.taskdescription(), self.world.get_possible_actions()
        seen = str(self.world.server.step("look around"))
        return f"{task.strip()}\nMoves: {'; '.join(forms)}\n{seen.strip()}"

    def step(self, action: str) -> Step:
        """Makes a move. What the world does not understand, it says."""
        before, seen = self.score, str(self.world.server.step(action.strip())).strip()
        self.question = seen if seen.startswith("Ambiguous request") else ""
        self.score = float(self.world.server.getScore())
        done = bool(self.world.server.getCompleted()) or self.score < 0
        return Step(seen, self.score - before, done, self.score >= 1)

    def close(self) -> None:
        """Leaves the environment to the next experiment."""
        if self.world is not None:
            JAVA.give(self.world)

    def key(self) -> str:
        """What a look around and into the bag would show, how far the goals are, and the question that is open."""
        return "\n".join([self.world.look(), self.world.inventory(), self.world.get_goal_progress(), self.question])


# --- scripts --------------------------------------------------------------------------------------------------------


def oracle(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """The gold path of the package."""
    kwargs = task.data["game"]["kwargs"]
    for move in gold(kwargs["task"], kwargs["variation"], kwargs["simplified"]):
        yield Say(calls=[("act", {"action": move})])


@functools.cache
def gold(task: str, variation: int, simplified: str) -> tuple[str, ...]:
    """A way to the end."""
    with JAVA.lent() as world:
        world.load(task, variation, simplified, generateGoldPath=True)
        return tuple(world.get_gold_action_sequence())


THING = re.compile(r"(?=\b(?:called|an?|the) ([a-z][a-z -]*?)(?: \(|[,.:\n]|$))")


def wild(task: Task, rng: random.Random, messages: list[Message]) -> Generator[Say, list[Message], None]:
    """Any form of a move, with any things that were named; any answer to a question."""
    seen, things = str(messages[-1]["content"]), dict.fromkeys(["door"])
    forms = seen.partition("\nMoves: ")[2].partition("\n")[0].split("; ")
    while True:
        things |= dict.fromkeys(THING.findall(seen.lower()))
        move = rng.choice(re.findall(r"^\d+(?=:\t)", seen, re.MULTILINE) or forms)
        while "OBJ" in move:
            move = move.replace("OBJ", rng.choice([*things]), 1)
        heard = yield Say(calls=[("act", {"action": move})])
        seen = str(heard[-1]["content"])
