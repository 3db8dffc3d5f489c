"""tau2-bench: customers of a phone company, of a shop and of an airline."""

from __future__ import annotations

import itertools
import random
import zlib
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

from agentrl import Environment, Message, Say, Task, ToolResult, tool
from agentrl.registry.references import load_object
from agentrl.types.episode import MAIN, Episode

HERE = Path(__file__).parent
call = load_object("./backend.py:call", HERE)
domain_of = load_object("./backend.py:domain_of", HERE)
gold = load_object("./backend.py:gold", HERE)
state_of = load_object("./backend.py:state_of", HERE)
terms = load_object("./backend.py:terms", HERE)

ALONE = """You are a customer service agent. You get a ticket with a user's request, and solve it by calling tools. \
You cannot talk to the user, whose tools are yours, too. Call `done` when the ticket is solved. Follow the policy."""
WITH_USER = """You are a customer service agent. In each turn, either reply to the user or call tools. Follow the \
policy."""


def tickets(
    split: str = "train",
    n: int | None = None,
    policy: bool = True,
    about: str = "",
    solved_by: Sequence[str] | None = None,
    held_out: bool | None = None,
) -> Iterator[Task]:
    """Requests to a phone company, to be solved alone ("solo mode").

    Args:
        split: `train` (74), `test` (40), `small` (20) or `full` (2285, with all of those), as in the package.
        n: only the first so many.
        policy: whether the model reads the policy (23,000 characters).
        about: what the task's id begins with, such as `[mobile_data_issue]`.
        solved_by: only tasks whose solution calls no others than these, and these without arguments.
        held_out: one in four (by a hash of the faults), or the rest; default: both. For splits of your own.

    Raises:
        TaskError: tau2 is not installed, or has no such split.
    """
    found = (task for task in domain_of("telecom").split(split) if task.id.startswith(about))
    if solved_by is not None:
        found = (task for task in found if all(name in solved_by and not given for name, given in gold(task)))
    if held_out is not None:
        found = (task for task in found if (zlib.crc32(task.id.split("[PERSONA")[0].encode()) % 4 == 0) == held_out)
    for task in itertools.islice(found, n):
        yield Task.of(
            task.id, [*_system(ALONE, "telecom", policy), {"role": "user", "content": task.ticket}], domain="telecom"
        )


def requests(domain: str, split: str = "train", n: int | None = None) -> Iterator[Task]:
    """Requests of users of `retail` (train 74, test 40) or `airline` (train 30, test 20).

    The instruction is what the user is told; the agent `dialogue` shows it to the user alone.

    Raises:
        TaskError: tau2 is not installed, or has no such split.
    """
    for task in itertools.islice(domain_of(domain).split(split), n):
        told = task.user_scenario.instructions
        yield Task.of(
            task.id,
            f"<scenario>\n{told}\n</scenario>",
            domain=domain,
            wish=told.reason_for_call,
            known=told.known_info or "",
            wants=told.task_instructions,
        )


def _system(role: str, domain: str, policy: bool) -> list[Message]:
    rules = f"\n\n<policy>\n{domain_of(domain).policy}\n</policy>" if policy else ""
    return [{"role": "system", "content": f"{role}{rules}"}]


class Desk(Environment):
    """The databases and tools of a domain. Alone, there is also `done`, which ends the episode.

    Args:
        policy: whether an agent that talks with a user reads the policy.

    Attributes:
        info: `calls`: those that reached the environment.
    """

    def __init__(self, policy: bool = True) -> None:
        self.policy = policy

    async def open(self, task: Task, sandbox: object) -> None:
        """Sets the databases to the first state of the task."""
        self.domain = domain_of(task.data["domain"])
        self.state = self.domain.opened(self.domain.tasks[task.id])
        self.calls: list[Any] = []
        self.info = {"calls": self.calls}
        self.offered = [self._tool(each) for each in self.domain.definitions]
        if self.domain.solo:
            self.offered.append(self.done)

    def tools(self) -> Sequence[Any]:
        return self.offered

    def opening(self) -> list[Message]:
        return [] if self.domain.solo else _system(WITH_USER, self.domain.name, self.policy)

    def _tool(self, definition: dict[str, Any]) -> Any:
        name = definition["name"]

        async def run(arguments: dict[str, Any]) -> str:
            self.calls.append([name, arguments])
            return str(call(self.state, name, arguments))

        return tool.from_schema(name, definition["description"], definition["parameters"], run)

    @tool
    def done(self) -> ToolResult:
        """Call this function when you are done with the task."""
        return ToolResult("", done=True)

    def state_key(self) -> str:
        return str(state_of(self.state))


def solved(task: Task, episode: Episode, info: dict[str, Any]) -> float:
    """The product of the terms of the task; 0 if a limit ended the episode, as in the package."""
    if episode.status != "done" or "calls" not in info:
        return 0.0
    domain = domain_of(task.data["domain"])
    said = [turn.text for turn in episode.turns if turn.context == MAIN and not turn.calls]
    found: dict[str, float] = terms(domain, domain.tasks[task.id], info["calls"], said)
    return float(min(found.values()))


def oracle(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """The calls of the package's solution, and what the user must be told."""
    wanted = domain_of(task.data["domain"]).tasks[task.id]
    for name, arguments in gold(wanted):
        yield Say(calls=[(name, arguments)])
    if task.data["domain"] == "telecom":
        yield Say(calls=[("done", {})])
    yield Say(f"Done. {', '.join(wanted.evaluation_criteria.communicate_info or [])}".strip())


LOOKS = ("check_network_status", "check_data_restriction_status", "check_vpn_status")
FIXES = ("toggle_airplane_mode", "toggle_data", "toggle_roaming", "toggle_data_saver_mode", "disconnect_vpn")


def clerk(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Looks at all that may be wrong with mobile data, does three of four things that would help and one of seven
    others, in any order, and is done. Shows what can be called; what is seen and what helps has yet to be brought
    together."""
    solution = {name for name, _ in gold(domain_of("telecom").tasks[task.id])}
    wanted = [name for name in FIXES if rng.random() < (3 / 4 if name in solution else 1 / 7)]
    looks = rng.sample(LOOKS, len(LOOKS))
    for name in (*looks, *rng.sample(wanted, len(wanted)), "done"):
        yield Say(calls=[(name, {})])


PATIENCE = 4


def user(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """A user without a model: tells everything at once, agrees with everything, and goes after four replies."""
    yield Say(" ".join([task.data["wish"], task.data["known"], task.data["wants"]]).strip())
    for _ in range(PATIENCE - 1):
        yield Say("Yes, please.")
    yield Say("###STOP###")
