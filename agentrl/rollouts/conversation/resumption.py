"""Record of an episode that is resumed from one of its turns, and its comparison with what is played again.

Tools are restored to the state saved before the turn, or their calls run again, in order. A difference from the record
is an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from agentrl.chat.renderer import Renderer
from agentrl.engines.replay import RecordedReplies
from agentrl.tools.base import Environment, Tool
from agentrl.tools.calling import called
from agentrl.types.episode import (
    MAIN,
    Branch,
    CallRecord,
    Drift,
    Episode,
    Parent,
    Turn,
    TurnDraft,
    path_to,
    prompt_of,
)
from agentrl.types.errors import AgentRLError
from agentrl.types.sandbox import Sandbox
from agentrl.types.task import Message
from agentrl.types.trajectory import Trajectory


class ReplayDiffers(AgentRLError):
    """The replay differs from the record."""


@dataclass(frozen=True)
class Prefix:
    """Prefix of an episode that is resumed.

    Attributes:
        record: the parent, whole, or its turns so far. Rewards of its turns are those of tools.
        seed: of the parent's episode, for agents that draw random numbers.
        saved: current states of the tools, if the turn is not in the record: the next one.
        files: whether the sandbox has the current files.
    """

    parent: Parent
    record: Episode
    seed: int
    saved: list[Any] | None = None
    files: bool = False


class Resumption:
    """Record of the turns that one episode repeats.

    Attributes:
        record: with these turns, and the next one if there is one.
        replies: the replies in the record.
        turn: the first turn that is sampled.
        live: whether the parent is running. Its fork has no agent that runs from the beginning.
        restores: whether tools are restored to a saved state. Otherwise their calls run again.
        reached: whether `turn` has begun.
        now: the recorded turn that is being repeated.
    """

    def __init__(self, prefix: Prefix, tools: Sequence[Tool], sandbox: Sandbox | None, changes: bool = False) -> None:
        self.parent, self.record, self.seed = prefix.parent, prefix.record, prefix.seed
        self.turn, self.reached = prefix.parent.turn, False
        self.record = _up_to(self.record, self.turn)
        self.replies = RecordedReplies(self.record)
        self.now: Turn | None = None
        self.live = not prefix.parent.run
        past = self.turn < len(prefix.record.turns)
        self.states = prefix.record.turns[self.turn].saved if past else prefix.saved
        self._savers = savers(tools)
        plain = keeps_files_alone(tools) if prefix.files else all(t.stateless or t in self._savers for t in tools)
        known = prefix.files or (self.states is not None and len(self.states) == len(self._savers))
        # Images are files of a run: calls with images run again, so that this run has them.
        said = [message for turn in self.record.turns[: self.turn] for message in turn.observations]
        same = not changes and all(isinstance(m.get("content"), str) for m in said)
        self.restores = plain and known and (prefix.files or sandbox is None) and same

    @property
    def past(self) -> Turn | None:
        """The repeated turn, if its calls need not run again because the tools will be restored."""
        return self.now if self.restores and not self.reached else None

    def fork(self, number: int) -> Drift | Branch | None:
        """Returns the branch or drift at the prompt of a turn, if any."""
        forks: list[Drift | Branch] = [*self.record.branches, *self.record.drift]
        return next((each for each in forks if each.turn == number), None)

    async def restore(self) -> None:
        """Restores the tools to their state before `turn`."""
        for tool, state in zip(self._savers, self.states or () if self.restores else (), strict=False):
            await called(tool, tool.restore, msgspec.to_builtins(state))

    def check(self, number: int, context: str, opening: list[Message], own: Sequence[TurnDraft]) -> None:
        """Compares the messages of a conversation since its previous reply, or its opening, with the record.

        Args:
            number: the turn of the episode that is next.
            context: the conversation of this turn.
            own: its turns so far.

        Raises:
            ReplayDiffers: they differ, or the turn is of another conversation.
        """
        turns = self.record.turns
        if number < len(turns) and turns[number].context != context:
            raise self._differs(f"turn {number}: the context", turns[number].context, context)
        if own:
            self._compare_turn(turns[own[-1].index], own[-1])
        elif context == MAIN:
            self._compare("the opening", self.record.prompt, opening)
        else:
            self._compare(f"the opening of {context!r}", self.record.contexts[context].prompt, opening)

    def check_text(self, number: int, text: str) -> None:
        """Checks that the tokens of a recorded reply decode to the same text.

        Raises:
            ReplayDiffers: they do not: the tokenizer is another one.
        """
        recorded = self.record.turns[number].text
        if text != recorded:
            raise self._differs(
                f"turn {number}: the recorded tokens",
                recorded,
                text,
                "use the run's model, or one with its tokenizer",
            )

    def check_beginning(self, number: int, recorded: list[int], now: list[int], renderer: Renderer) -> None:
        """Checks that the agent begins a reply as in the record. In a live fork no agent does.

        Raises:
            ReplayDiffers: it begins otherwise.
        """
        if not self.live and recorded != now:
            decode = renderer.tokenizer.decode
            raise self._differs(f"turn {number}: the beginning of the reply", decode(recorded), decode(now))

    def check_reached(self, own: Sequence[TurnDraft]) -> None:
        """Checks that the agent reached `turn`.

        Raises:
            ReplayDiffers: it ended before.
        """
        if self.reached:
            return
        if own:
            self._compare_turn(self.record.turns[own[-1].index], own[-1])
        raise self._differs("the agent", f"{self.turn + 1} turns or more", f"{own[-1].index + 1 if own else 0} turns")

    def _compare_turn(self, recorded: Turn, own: TurnDraft) -> None:
        for index, (was, now) in enumerate(zip(recorded.calls, own.calls, strict=False)):
            if (was.outcome, was.result) != (now.outcome, now.result):
                raise self._differs(f"turn {own.index}, call {index}, {_call(was)}", was.result, now.result)
        self._compare(f"turn {own.index}: the messages after the reply", recorded.observations, own.observations)

    def _compare(self, what: str, recorded: list[Message], now: list[Message]) -> None:
        if recorded == now:
            return
        at = next((k for k, (a, b) in enumerate(zip(recorded, now, strict=False)) if a != b), None)
        if at is None:
            raise self._differs(what, f"{len(recorded)} messages", f"{len(now)}")
        raise self._differs(f"{what}, message {at}", _message(recorded[at]), _message(now[at]))

    def _differs(self, what: str, recorded: str, now: str, remedy: str = "") -> ReplayDiffers:
        return ReplayDiffers(
            f"{what}: recorded is {_short(recorded)}, and played back {_short(now)}",
            place=f"{f'task {self.record.task.id!r}' if self.live else f'run {self.parent.run}'}, "
            f"episode {self.parent.episode}",
            remedy=remedy
            or "take random numbers from task.seed and session.rng, undo changes of the recipe and its code, or define "
            "save() and restore() in every environment (docs/fork.md)",
        )


def _up_to(record: Episode, turn: int) -> Episode:
    """Returns a record with the turns up to this one, and only their tokens. Those that the agent began this turn with
    are left out: it is sampled anew.
    """
    turns, nodes = record.turns[: turn + 1], [*record.nodes]
    if turn < len(record.turns) and nodes:
        last = record.turns[turn].node
        nodes[last] = msgspec.structs.replace(nodes[last], parent=prompt_of(nodes, last))
    kept = {node for each in turns for node in path_to(nodes, each.node)}
    nodes, moved = Trajectory(nodes).without(set(range(len(nodes))) - kept)
    turns = [msgspec.structs.replace(each, node=moved[each.node]) for each in turns]
    return msgspec.structs.replace(record, nodes=nodes, turns=turns)


def savers(tools: Sequence[Tool]) -> list[Environment]:
    """Returns the tools whose state can be saved and restored."""
    return [tool for tool in tools if isinstance(tool, Environment) and _saves(type(tool))]


def keeps_files_alone(tools: Sequence[Tool]) -> bool:
    """Returns True if the files of the sandbox are the whole state of the tools."""
    return all(tool.stateless or tool.keeps_files_alone for tool in tools)


def _saves(cls: type[Environment]) -> bool:
    return cls.save is not Environment.save and cls.restore is not Environment.restore


def _call(call: CallRecord) -> str:
    return f"{call.name}({', '.join(f'{key}={value!r}' for key, value in call.arguments.items())})"


def _message(message: Message) -> str:
    return f"{message.get('role')}: {message.get('content')}"


def _short(text: str) -> str:
    return repr(text if len(text) <= 300 else f"{text[:200]} ... {text[-80:]}")
