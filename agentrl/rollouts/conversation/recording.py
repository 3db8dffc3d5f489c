"""The recording of an episode: what all its conversations share."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import msgspec

from agentrl.config.limits import Limits
from agentrl.rollouts.conversation.calls import CallRunner
from agentrl.rollouts.conversation.resumption import Resumption
from agentrl.rollouts.faults.failures import LimitReached, within
from agentrl.tools.base import Environment
from agentrl.tools.calling import called
from agentrl.types import values
from agentrl.types.engine import Engine
from agentrl.types.episode import MAIN, Branch, Context, Drift, Episode, Node, Turn
from agentrl.types.errors import AgentRLError
from agentrl.types.task import Task
from agentrl.types.trajectory import ROOT, Trajectory


class Keyed(Protocol):
    """What knows the state of the episode: an agent, a tool."""

    def state_key(self) -> Any:
        """The state that the next turn acts on."""
        ...


class Recorded(Protocol):
    """A conversation, for its record."""

    def end_engine(self) -> None:
        """Tells its engine that it does not go on."""
        ...

    def record(self) -> Context:
        """What it is, and what opened it."""
        ...


class SessionMisused(AgentRLError):
    """An agent asked for what a conversation cannot do."""


@dataclass(frozen=True)
class EpisodeEnd:
    """How an agent ended its episode. An answer that is no text becomes it."""

    stop: str
    answer: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop", values.text(self.stop))
        if self.answer is not None:
            object.__setattr__(self, "answer", values.text(self.answer))


class Recording:
    """Tokens, turns and limits of one episode.

    Args:
        reserve: tokens that a prompt must leave free.
        keyed: those that know the state that a turn acts on, where credit reads it.
        saves: those whose state is stored with each turn.
        resumes: what is played back first.

    Attributes:
        stage: what the episode does now, for errors: `agent`, `generate` or `tools`.
        seats: whether the agent may give contexts outcomes of their own (`Agent.seats`).
    """

    def __init__(
        self,
        id: str,
        task: Task,
        engine: Engine,
        calls: CallRunner,
        *,
        max_turns: int,
        seed: int,
        reserve: Callable[[Sequence[int]], int],
        keyed: Sequence[Keyed],
        saves: Sequence[Environment] = (),
        resumes: Resumption | None = None,
    ) -> None:
        self.id, self.task, self.engine, self.calls = id, task, engine, calls
        self.max_turns, self.seed, self.reserve = max_turns, seed, reserve
        self.saves, self.resumes = saves, resumes
        self.trajectory = Trajectory(() if resumes is None else resumes.nodes)
        self.stage = "agent"
        self.seats = False
        self.seconds = {"generate": 0.0, "tools": 0.0}
        self._keyed = keyed
        self._begun = 0
        self._under_way: set[int] = set()
        self._busy: set[asyncio.Task[Any] | None] = set()
        self._over = False
        self._placed: dict[int, tuple[list[Turn], int]] = {}
        self._forks: dict[int, Drift | Branch] = {}
        self._conversations: dict[str, Recorded] = {}

    @cached_property
    def rng(self) -> random.Random:
        """A resumed agent draws the random numbers of its parent up to the turn, and its own from there on."""
        return random.Random(self.seed if self.resumes is None else self.resumes.seed)

    @property
    def limits(self) -> Limits:
        return self.calls.limits

    def begin_turn(self) -> int:
        """A turn begins, until `end_turn`: its number in the order in which turns begin.

        Raises:
            LimitReached: no turn is left.
        """
        if len(self._placed) + len(self._under_way) >= self.max_turns:
            raise LimitReached("turns")
        number, self._begun = self._begun, self._begun + 1
        self._under_way.add(number)
        return number

    def end_turn(self, number: int) -> None:
        """A turn is placed, or will not be."""
        self._under_way.discard(number)

    def begin_work(self) -> asyncio.Task[Any] | None:
        """A turn, or what follows it, begins in the current task: what `end_work` takes.

        Raises:
            SessionMisused: the agent has ended already.
        """
        if self._over:
            raise SessionMisused("the episode has ended", place=f"episode {self.id}", remedy="await what run() starts")
        task = asyncio.current_task()
        if task in self._busy:  # it ends where it began
            return None
        self._busy.add(task)
        return task

    def end_work(self, begun: asyncio.Task[Any] | None) -> None:
        """It has ended."""
        self._busy.discard(begun)

    async def settle(self) -> None:
        """Ends what still goes on beside the agent, which has ended: from here on the record does not change."""
        self._over = True
        tasks = [task for task in self._busy if task is not None and task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def join(self, name: str, conversation: Recorded) -> None:
        """A conversation of the episode.

        Raises:
            SessionMisused: another one has this name.
        """
        if name in self._conversations:
            raise SessionMisused(
                f"there is a context {name!r} already", place=f"episode {self.id}", remedy="give each a name of its own"
            )
        self._conversations[name] = conversation

    def name_for(self, role: str) -> str:
        """The name of one more conversation in which a role speaks: `search-1`, `search-2`, ..."""
        return f"{role}-{1 + sum(name.startswith(f'{role}-') for name in self._conversations)}"

    def place(self, number: int, own: list[Turn], turn: Turn, fork: Drift | Branch | None) -> None:
        """Appends a turn to those of its conversation, and remembers its place among all."""
        own.append(turn)
        self._placed[number] = own, len(own) - 1
        if fork is not None:
            self._forks[number] = fork

    def take(self, episode: Episode, own: list[Turn]) -> None:
        """Takes what was recorded elsewhere, in place of what there is: the turns become `own`."""
        self.trajectory = Trajectory(episode.nodes)
        self._begun, own[:] = len(episode.turns), episode.turns
        self._placed = {k: (own, k) for k in range(len(own))}
        self._forks = {branch.turn: branch for branch in episode.branches}
        self._forks |= {drift.turn: drift for drift in episode.drift}
        self.seconds["generate"] = episode.timings["generate"]

    def fields(self) -> dict[str, Any]:
        """What an episode holds of it."""
        turns, numbers = self.turns, {number: k for k, number in enumerate(sorted(self._placed))}
        forks = [_with(self._forks[number], "turn", numbers[number]) for number in sorted(self._forks)]
        spoken = {turn.context for turn in turns} - {MAIN}
        return {
            "nodes": self._nodes(turns),
            "turns": turns,
            "drift": [fork for fork in forks if isinstance(fork, Drift)],
            "branches": [fork for fork in forks if isinstance(fork, Branch)],
            "contexts": {name: each.record() for name, each in self._conversations.items() if name in spoken},
        }

    def _nodes(self, turns: Sequence[Turn]) -> list[Node]:
        """The tokens; of an episode that ended in what it plays back, those of the turns that it came to."""
        nodes = self.trajectory.nodes
        if self.resumes is None or self.resumes.reached:
            return nodes
        return nodes[: max((turn.node for turn in turns), default=ROOT) + 1]

    def end(self) -> list[Exception]:
        """Tells the engines that none of the conversations goes on; what they raised: the others end all the same."""
        raised = []
        for conversation in self._conversations.values():
            try:
                conversation.end_engine()
            except Exception as error:
                raised.append(error)
        return raised

    def release(self) -> None:
        """Forgets the conversations, which have it."""
        self._conversations.clear()

    @property
    def turns(self) -> list[Turn]:
        """The turns of all conversations, in the order in which they began."""
        return [_with(own[at], "index", k) for k, (own, at) in enumerate(self._in_order())]

    @turns.setter
    def turns(self, turns: Sequence[Turn]) -> None:
        for (own, at), turn in zip(self._in_order(), turns, strict=True):
            own[at] = turn

    def _in_order(self) -> list[tuple[list[Turn], int]]:
        return [self._placed[number] for number in sorted(self._placed)]

    def reseed(self, number: int) -> None:
        """In what is played back of a fork: from its own turns on, the numbers of that fork."""
        for first, seed in self.resumes.parent.seeds[1:] if self.resumes is not None else ():
            if first == number:
                self.rng.seed(seed)

    async def reach(self) -> None:
        """The turn has come that was resumed: from here on it is the episode's own."""
        if self.resumes is not None:
            await self.resumes.restore()
            self.resumes.reached = True
            self.rng.seed(self.seed)

    async def saved(self) -> list[Any] | None:
        """The states of the tools before the next turn; None if none can be saved.

        Raises:
            ValueRefused: one is no JSON.
        """
        found = []
        for tool in self.saves:
            name = type(tool).__name__
            async with within(tool.timeout_s, f"{name}.save", f"timeout_s of {name}", self.calls.sandbox):
                state = await called(tool, tool.save)
            try:
                found.append(values.plain(state, ("state",)))
            except values.ValueRefused as error:
                raise values.ValueRefused(error.message, place=f"{name}.save()", remedy=error.remedy) from None
        return found or None

    def state(self) -> str | None:
        """The state that the next turn acts on."""
        keys = [(each, key) for each in self._keyed if (key := each.state_key()) is not None]
        return "|".join(values.state_key(key, type(each).__name__) for each, key in keys) if keys else None


def _with(record: Any, field: str, number: int) -> Any:
    return record if getattr(record, field) == number else msgspec.structs.replace(record, **{field: number})
