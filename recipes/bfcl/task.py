"""BFCL v4 multi-turn: 800 conversations with users whose wishes need calls of simulated APIs."""

from __future__ import annotations

import itertools
import random
import zlib
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

from agentrl import Environment, Message, Say, Task, tool
from agentrl.registry.references import load_object

HERE = Path(__file__).parent
CATEGORIES: Sequence[str] = load_object("./backend.py:CATEGORIES", HERE)
Apis = load_object("./backend.py:Apis", HERE)
definitions = load_object("./backend.py:definitions", HERE)
entries = load_object("./backend.py:entries", HERE)
entry_of = load_object("./backend.py:entry_of", HERE)
rounds_right = load_object("./backend.py:rounds_right", HERE)

MORE_TOOLS = "I have updated some more functions you can choose from. What about now?"
"""The user's words when a function appears (BFCL's DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_FC)."""


def conversations(
    n: int | None = None,
    categories: Sequence[str] = CATEGORIES,
    held_out: bool = False,
    rounds: int | None = None,
    others: int | None = None,
) -> Iterator[Task]:
    """The first `n` tasks (None: all), the categories in turn.

    Args:
        held_out: one in eight of the scenarios, for evaluation, not the rest. The four categories vary the same 200
            scenarios: a scenario is held out in all of them.
        rounds: only the first so many wishes of the user; those in which nothing is to be called are left out.
        others: so many functions beside those of the solution, drawn by the task's id; None: all of the APIs.

    Raises:
        TaskError: bfcl-eval is not installed, or there is no such category.
    """
    pools = [
        [entry for entry in entries(category).values() if _held_out(entry["id"]) == held_out] for category in categories
    ]
    dealt = (entry for row in itertools.zip_longest(*pools) for entry in row if entry is not None)
    made = (_task(entry, rounds, others) for entry in dealt if any(entry["gold"][:rounds]))
    return itertools.islice(made, n)


def _held_out(id: str) -> bool:
    return zlib.crc32(id.rpartition("_")[2].encode()) % 8 == 0


def _task(entry: dict[str, Any], rounds: int | None, others: int | None) -> Task:
    gold = entry["gold"][:rounds]
    wishes = [said[0]["content"] if said else MORE_TOOLS for said in entry["question"]][:rounds]
    offered = {name: each for api in entry["involved_classes"] for name, each in definitions(api).items()}
    if others is not None:
        needed = {name for calls in gold for name, _ in calls}
        rest = [name for name in offered if name not in needed]
        needed.update(random.Random(entry["id"]).sample(rest, min(others, len(rest))))
        offered = {name: each for name, each in offered.items() if name in needed}
    late = {
        int(number): [offered.pop(name) for name in names if name in offered]
        for number, names in entry.get("missed_function", {}).items()
    }
    return Task.of(
        entry["id"],
        wishes[0],
        tools=["Desk", *offered.values()],
        rounds=wishes[1:],
        late={str(number): each for number, each in late.items() if number < len(wishes)},
        gold=gold,
    )


class Desk(Environment):
    """The APIs of a task and its user.

    The functions of a task are its own. One that is missing at first (`miss_func`) appears in a later round.

    Attributes:
        info: `calls`: those that reached an API, of each round.
    """

    async def open(self, task: Task, sandbox: object) -> None:
        """Sets the APIs to the task's first state."""
        self.task, self.apis, self.calls = task, Apis(entry_of(task.id)), [[]]
        self.info = {"calls": self.calls}
        self.late: list[Any] = []

    def tools(self) -> Sequence[Any]:
        return self.late

    async def call_tool(self, name: str, arguments: dict[str, Any]) -> str:
        self.calls[-1].append([name, arguments])
        said: str = self.apis.call(name, arguments)
        return said

    async def respond(self, reply: object) -> str | None:
        """The next wish. A round ends with a reply without a call."""
        if len(self.calls) > len(self.task.data["rounds"]):
            return None
        wish: str = self.task.data["rounds"][len(self.calls) - 1]
        for each in self.task.data["late"].get(str(len(self.calls)), []):
            self.late.append(tool.from_schema(each["name"], each["description"], each["parameters"], self._call(each)))
        self.calls.append([])
        return wish

    def _call(self, definition: dict[str, Any]) -> Any:
        async def call(arguments: dict[str, Any]) -> str:
            return await self.call_tool(definition["name"], arguments)

        return call

    def state_key(self) -> str:
        return f"{len(self.calls)} {self.apis.key()}"


def valid(task: Task, info: dict[str, Any]) -> float:
    """1 if every round is right and none is missing: BFCL's own verdict."""
    return float(progress(task, info) == 1.0)


def progress(task: Task, info: dict[str, Any]) -> float:
    """The share of the rounds before the first that is wrong."""
    gold: Sequence[Any] = task.data["gold"]
    return float(rounds_right(entry_of(task.id), gold, info.get("calls", [])) / len(gold))


def oracle(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """The calls of the package's solution, a reply for each round."""
    for calls in task.data["gold"]:
        if calls:
            yield Say(calls=[(name, arguments) for name, arguments in calls])
        yield Say("Done." if calls else "I lack what this needs.")
