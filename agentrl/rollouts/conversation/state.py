"""State of a running episode, shared by all its conversations."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from agentrl.config.limits import Limits
from agentrl.rollouts.conversation.calls import CallRunner
from agentrl.rollouts.faults.failures import LimitReached, raised_in, within
from agentrl.rollouts.states.registry import StateRule
from agentrl.tools.base import Environment
from agentrl.tools.calling import called
from agentrl.types import values
from agentrl.types.episode import MAIN, Context
from agentrl.types.errors import AgentRLError
from agentrl.types.recording import Recording
from agentrl.types.task import Task


class RecordedConversation(Protocol):
    """Conversation, as the state of its episode sees it."""

    state: EpisodeState
    under_way: str

    @property
    def id(self) -> str:
        """Id of the episode."""
        ...

    def end_engine(self) -> None:
        """Ends its session of the engine."""
        ...

    def record(self) -> Context:
        """Returns its description and its opening."""
        ...


class SessionMisused(AgentRLError):
    """An agent called a conversation in an invalid way."""


@dataclass(frozen=True)
class EpisodeEnd:
    """End of an episode by its agent. Answers that are not strings are converted to text."""

    stop: str
    answer: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop", values.text(self.stop))
        if self.answer is not None:
            object.__setattr__(self, "answer", values.text(self.answer))


class EpisodeState:
    """Recording, limits and random numbers of one episode.

    Args:
        calls: runs its tool calls, under its limits.
        states: decides which state a turn has, if credit reads it.
        saves: environments whose state is stored with each turn.
        split: what the episode is for: `train`, `eval`, `rollout`, `demo`.

    Attributes:
        recording: its turns, branches and tokens.
        stage: current stage, for errors: `agent`, `generate` or `tools`.
        seats: whether the agent may give contexts separate outcomes (`Agent.seats`).
    """

    def __init__(
        self,
        id: str,
        task: Task,
        calls: CallRunner,
        *,
        max_turns: int,
        seed: int,
        states: StateRule | None = None,
        saves: Sequence[Environment] = (),
        split: str = "rollout",
    ) -> None:
        self.id, self.task, self.calls, self.split = id, task, calls, split
        self.max_turns, self.seed, self.saves = max_turns, seed, saves
        self.recording = Recording()
        self.stage = "agent"
        self.seats = False
        self.seconds = {"generate": 0.0, "tools": 0.0}
        self.states = states
        self._begun = 0
        self._under_way: set[int] = set()
        self._busy: set[asyncio.Task[Any] | None] = set()
        self._over = False
        self._conversations: dict[str, RecordedConversation] = {}

    @cached_property
    def rng(self) -> random.Random:
        """Random numbers of the agent."""
        return random.Random(self.seed)

    @property
    def limits(self) -> Limits:
        return self.calls.limits

    def begin_turn(self) -> int:
        """Begins a turn, until `end_turn`; returns its number in the order in which turns begin.

        Raises:
            LimitReached: no turn is left.
        """
        if len(self.recording) + len(self._under_way) >= self.max_turns:
            raise LimitReached("turns")
        number, self._begun = self._begun, self._begun + 1
        self._under_way.add(number)
        return number

    def end_turn(self, number: int) -> None:
        """Ends a turn, placed or not."""
        self._under_way.discard(number)

    def begin_work(self) -> asyncio.Task[Any] | None:
        """Registers the current task as working on a turn or its observations; the result is for `end_work`.

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
        """Unregisters the task."""
        self._busy.discard(begun)

    async def settle(self) -> None:
        """Cancels remaining tasks after the end of the agent: from here on it does not change the record."""
        self._over = True
        tasks = [task for task in self._busy if task is not None and task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def join(self, name: str, conversation: RecordedConversation) -> None:
        """Registers a conversation of the episode.

        Raises:
            SessionMisused: another one has this name.
        """
        if name in self._conversations:
            raise SessionMisused(
                f"there is a context {name!r} already", place=f"episode {self.id}", remedy="give each a name of its own"
            )
        self._conversations[name] = conversation

    def name_for(self, role: str) -> str:
        """Returns a name for one more conversation of a role: `search-1`, `search-2`, ..."""
        return f"{role}-{1 + sum(name.startswith(f'{role}-') for name in self._conversations)}"

    def fields(self) -> dict[str, Any]:
        """Returns the recorded fields of an episode."""
        fields = self.recording.fields()
        spoken = {turn.context for turn in fields["turns"]} - {MAIN}
        contexts = {name: each.record() for name, each in self._conversations.items() if name in spoken}
        return {**fields, "contexts": contexts}

    def end(self) -> list[Exception]:
        """Finishes the recording, and ends the conversations' sessions of the engines; returns their errors."""
        self.recording.finish()
        raised = []
        for conversation in self._conversations.values():
            try:
                conversation.end_engine()
            except Exception as error:
                raised.append(error)
        return raised

    def release(self) -> None:
        """Drops the conversations, which refer to it."""
        self._conversations.clear()

    async def saved(self) -> list[Any] | None:
        """Returns the states of the tools before the next turn; None if none can be saved.

        Raises:
            ValueRefused: one is not JSON.
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


class ExclusiveCall:
    """Excludes concurrent calls on a conversation: they would sample other prompts than the recorded ones.

    Entered several times per turn: a class takes a third of the time of a generator.
    """

    __slots__ = ("_begun", "_conversation", "_what")

    def __init__(self, conversation: RecordedConversation, what: str) -> None:
        self._conversation, self._what = conversation, what

    def __enter__(self) -> None:
        conversation = self._conversation
        if conversation.under_way:
            raise SessionMisused(
                f"{self._what} was called while {conversation.under_way} of the same context was under way",
                place=f"episode {conversation.id}",
                remedy="await one after the other; several replies to one prompt are several episodes of a group",
            )
        self._begun = conversation.state.begin_work()
        conversation.under_way = self._what

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        conversation = self._conversation
        conversation.under_way = ""
        conversation.state.end_work(self._begun)
        if error is not None:
            raised_in(conversation.id, error)


class Conversations:
    """The states of episodes in flight, by id."""

    def __init__(self) -> None:
        self.states: dict[str, EpisodeState] = {}

    def counts(self) -> dict[str, tuple[str, int]]:
        """Returns stage and number of turns of each episode, by its id. May be called from any thread."""
        return {id: (state.stage, len(state.recording)) for id, state in self.states.copy().items()}
