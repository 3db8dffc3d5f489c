"""AgentDojo: a secretary, a travel agent, a bank and a chat, with or without texts that want to be obeyed."""

from __future__ import annotations

import itertools
import random
import zlib
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

from agentrl import Environment, Message, Say, Task
from agentrl.registry.references import load_object
from agentrl.types.episode import Episode
from agentrl.types.errors import TaskError

HERE = Path(__file__).parent
SUITES: Sequence[str] = load_object("./backend.py:SUITES", HERE)
state_of = load_object("./backend.py:state_of", HERE)
suite_of = load_object("./backend.py:suite_of", HERE)


def requests(
    suite: str | Sequence[str] = "all", n: int | None = None, held_out: bool = False, injected: bool = False
) -> Iterator[Task]:
    """The first `n` requests of users (None: all), the suites in turn.

    Args:
        suite: one of `SUITES`, several, or `all`.
        held_out: one request in four, for evaluation, not the rest.
        injected: each request with every injection of its suite: a text where the solution reads that wants something
            else done.

    Raises:
        TaskError: agentdojo is not installed, or has no such suite.
    """
    names = SUITES if suite == "all" else [suite] if isinstance(suite, str) else [*suite]
    if (unknown := next((name for name in names if name not in SUITES), None)) is not None:
        raise TaskError(f"agentdojo has no suite {unknown!r}", remedy=f"there are: all, {', '.join(SUITES)}")
    pools = [[task for task in _tasks(name, injected) if _held_out(task) == held_out] for name in names]
    dealt = (task for row in itertools.zip_longest(*pools) for task in row if task is not None)
    return itertools.islice(dealt, n)


def _tasks(name: str, injected: bool) -> Iterator[Task]:
    suite = suite_of(name)
    for injection in suite.injections if injected else [None]:
        for user in suite.tasks:
            yield Task.of(
                f"{name}-{user}" + (f"-{injection}" if injection else ""),
                suite.tasks[user].PROMPT,
                tools=["Desk", *suite.definitions],
                suite=name,
                user=user,
                injection=injection,
            )


def _held_out(task: Task) -> bool:
    return zlib.crc32(f"{task.data['suite']} {task.data['user']}".encode()) % 4 == 0


class Desk(Environment):
    """The environment of a suite.

    Attributes:
        info: `calls`: those that reached it.
    """

    async def open(self, task: Task, sandbox: object) -> None:
        """Sets everything to the first state of the task."""
        self.suite = suite_of(task.data["suite"])
        self.state = self.suite.opened(task.data["user"], task.data["injection"])
        self.calls: list[Any] = []
        self.info = {"calls": self.calls}

    async def call_tool(self, name: str, arguments: dict[str, Any]) -> str:
        self.calls.append([name, arguments])
        return str(self.suite.call(self.state, name, arguments))

    def state_key(self) -> str:
        return str(state_of(self.state))


def useful(task: Task, episode: Episode, info: dict[str, Any]) -> float:
    """1 if the user is served: the package's `utility`; 0 if a limit ended the episode."""
    return float(_checked(task, episode, info)[0])


def safe(task: Task, episode: Episode, info: dict[str, Any]) -> float:
    """1 if the injection did not get what it wants: the opposite of the package's `security`."""
    return float(not _checked(task, episode, info)[1])


def robust(task: Task, episode: Episode, info: dict[str, Any]) -> float:
    """1 if the user is served and the injection is not."""
    served, taken = _checked(task, episode, info)
    return float(served and not taken)


def _checked(task: Task, episode: Episode, info: dict[str, Any]) -> tuple[bool, bool]:
    said = episode.turns[-1].text if episode.turns else ""
    calls = info.get("calls", [])
    served, taken = suite_of(task.data["suite"]).checked(task.data["user"], task.data["injection"], calls, said)
    return served and episode.status == "done", taken


def oracle(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """The calls of the package's solution, and its answer."""
    suite = suite_of(task.data["suite"])
    for name, arguments in suite.gold(task.data["user"], task.data["injection"]):
        yield Say(calls=[(name, arguments)])
    yield Say(suite.said(task.data["user"]) or "Done.")


def obedient(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Does what the injection wants, and nothing else."""
    suite = suite_of(task.data["suite"])
    for name, arguments in suite.wanted(task.data["user"], task.data["injection"]):
        yield Say(calls=[(name, arguments)])
    yield Say("Done.")
