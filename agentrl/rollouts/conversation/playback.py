"""Playback: turns of a record that an episode repeats before it continues with its own.

Replies come from the record and are not trained on: token for token, or as text where a policy's tokens are not
recorded. The agent runs from its beginning, or, in a fork of a running episode, its actions are repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from agentrl.chat.formats.parser import Reply
from agentrl.chat.thread import Prompt
from agentrl.rollouts.conversation.calls import CallRunner, Heard
from agentrl.rollouts.conversation.conversation import Conversation, RecordedPrompt
from agentrl.rollouts.conversation.resumption import Resumption
from agentrl.rollouts.conversation.state import EpisodeState
from agentrl.tools.base import Environment, Observation, ToolResult
from agentrl.tools.methods import ToolMethod
from agentrl.types.episode import Branch, CallRecord, Drift, Node, Turn, TurnDraft


class RepeatedTurns:
    """Source of the turns of an episode that resumes another one: those of the record, then those of the policies."""

    def __init__(self, resumption: Resumption) -> None:
        self.resumption = resumption
        self._lock = asyncio.Lock()

    @property
    def repeats(self) -> bool:
        """True until the first turn that is sampled."""
        return not self.resumption.reached

    def begin(self, state: EpisodeState) -> None:
        """Sets the random numbers of the agent to those of the record."""
        state.rng.seed(self.resumption.seed)

    async def turn(self, conversation: Conversation, number: int, agent: str, begin: str) -> Reply:
        """Repeats or samples the next turn.

        Raises:
            ReplayDiffers: the messages before it are not those of the record.
        """
        if self.resumption.reached:
            return await conversation.sample(number, agent, begin)
        async with self._lock:
            if number < self.resumption.turn:
                return await self._repeat(conversation, number, agent, begin)
            prompt = await self._handed_over(conversation, number)
        return await conversation.sample(number, agent, begin, prompt)

    def check_end(self, turns: Sequence[TurnDraft]) -> None:
        """Checks that the agent played all turns of the record.

        Raises:
            ReplayDiffers: it ended before.
        """
        self.resumption.check_reached(turns)

    async def play_back(self, session: Conversation) -> None:
        """Plays the turns of a fork of a running episode up to its first new turn: no agent does.

        Raises:
            ReplayDiffers: calls that ran again gave other results than those of the record.
        """
        resumption = self.resumption
        session.begin(resumption.record.prompt)
        session.begin_engine()
        for turn in resumption.record.turns[: resumption.turn]:
            _rewrite(session, resumption, turn.index)
            await _again(session, turn)
            session.turns[-1].rewards = {**turn.rewards}  # Some come from the agent, which does not run again.
        _rewrite(session, resumption, resumption.turn)
        resumption.check(resumption.turn, session.name, session.opening, session.turns)
        await self._reach(session.state)
        session.outcome = None

    async def _reach(self, state: EpisodeState) -> None:
        """Ends the playback: restores the tools; the next turn is the episode's own."""
        await self.resumption.restore()
        self.resumption.reached = True
        state.rng.seed(state.seed)
        self._take(state, len(self.resumption.record.nodes))

    async def _repeat(self, conversation: Conversation, number: int, agent: str, begin: str) -> Reply:
        resumption = self.resumption
        resumption.check(number, conversation.name, conversation.opening, conversation.turns)
        for first, seed in resumption.parent.seeds[1:]:  # Of a fork: from its own turns on, it drew its own numbers.
            if first == number:
                conversation.state.rng.seed(seed)
        conversation.read_tools()
        resumption.now = recorded = resumption.record.turns[number]
        turn = _draft(recorded, number, agent, recorded.rewards if resumption.restores else {})
        if not conversation.speaker.recorded:
            self._take(conversation.state, recorded.node + 1)
            return await conversation.adopt_text(turn, resumption.fork(number))
        renderer, prompt = conversation.renderer, resumption.replies.prompt(recorded)
        begun = resumption.replies.begun(recorded)
        resumption.check_beginning(number, begun, renderer.begin(begin, prompt) if begin else [], renderer)
        said = resumption.replies.completion(recorded).token_ids
        text, reply = renderer.read(prompt, [*begun, *said], list(conversation.methods))
        resumption.check_text(number, text)
        await conversation.engine.skip([*prompt, *begun], conversation.engine_session)
        self._take(conversation.state, recorded.node + 1)
        conversation.adopt(turn, renderer.opening_of(prompt), resumption.fork(number))
        return reply

    async def _handed_over(self, conversation: Conversation, number: int) -> RecordedPrompt | None:
        """Ends the playback. Returns the recorded prompt of the first sampled turn, or None if there is none."""
        resumption = self.resumption
        if resumption.reached:
            return None
        if number != resumption.turn:
            await self._reach(conversation.state)
            return None
        resumption.check(number, conversation.name, conversation.opening, conversation.turns)
        await self._reach(conversation.state)
        if not conversation.speaker.recorded:
            return None
        turn, fork = resumption.record.turns[number], resumption.fork(number)
        node, kind = resumption.record.nodes[turn.node].parent, fork.kind if isinstance(fork, Drift) else None
        tokens = resumption.replies.prompt(turn)
        return Prompt(node, tokens, None if fork is None else fork.at_token, kind), fork

    def _take(self, state: EpisodeState, end: int) -> None:
        """Takes the tokens of the record up to a node, and at most up to the prompt of the first sampled turn."""
        trajectory, record, turn = state.recording.trajectory, self.resumption.record, self.resumption.turn
        end = min(end, record.turns[turn].node if turn < len(record.turns) else len(record.nodes))
        for node in record.nodes[len(trajectory.nodes) : end]:
            trajectory.take(_untrained(node))


@dataclass
class RepeatedCalls(CallRunner):
    """Repeats results of calls, answers and rewards where the tools are restored; else, and then, runs them.

    Attributes:
        resumption: the record.
    """

    resumption: Resumption = field(kw_only=True)

    async def run(self, reply: Reply, methods: Mapping[str, ToolMethod]) -> tuple[list[CallRecord], list[ToolResult]]:
        """Returns the recorded results of the repeated turn, or runs the calls."""
        if (past := self.resumption.past) is None:
            return await super().run(reply, methods)
        return past.calls, [ToolResult(call.result, executed=past.executed) for call in past.calls if call.valid]

    async def respond(self, environments: Sequence[Environment], reply: Reply) -> Heard | None:
        """Returns the recorded answer to the repeated turn, or asks the environments."""
        if (past := self.resumption.past) is None:
            return await super().respond(environments, reply)
        if past.heard is None:
            return None
        message = past.observations[past.heard]
        said = Observation(message["content"], role=message["role"], points=past.points, executed=past.executed)
        return Heard(said, message, {})

    def reward(self, turn: TurnDraft, given: dict[str, float]) -> None:
        """Adds rewards of the agent; a repeated turn has them already."""
        if self.resumption.past is None:
            super().reward(turn, given)


def _rewrite(session: Conversation, resumption: Resumption, number: int) -> None:
    fork = resumption.fork(number)
    if isinstance(fork, Branch) and fork.messages is not None:
        session.rewrite(fork.messages, reason="summary" if fork.reason == "summary" else "rewrite")


async def _again(session: Conversation, turn: Turn) -> None:
    """Repeats one turn and its observations, in the order of the record."""
    reply = await session.generate(agent=turn.agent)
    called = not turn.calls
    while (at := len(session.turns[-1].observations)) < len(turn.observations):
        message = turn.observations[at]
        if not called and message["role"] == "tool":
            called = True
            await session.run_tools(reply)
        elif turn.heard == at:
            await session.respond(reply)
        else:
            session.say(message["content"], role=message["role"])
        if len(session.turns[-1].observations) == at:  # without an observation: `check` reports the difference
            return


def _untrained(node: Node) -> Node:
    return msgspec.structs.replace(node, kind="spoken") if node.kind == "sampled" else node


def _draft(recorded: Turn, number: int, agent: str, rewards: Mapping[str, float | None]) -> TurnDraft:
    """Returns a recorded turn without what follows its reply."""
    return TurnDraft(
        index=number,
        node=recorded.node,
        text=recorded.text,
        finish=recorded.finish,
        state=recorded.state,
        agent=agent,
        rewards={**rewards},
        gold_logprob=recorded.gold_logprob,
        hindsight_logprob=recorded.hindsight_logprob,
        context=recorded.context,
        saved=recorded.saved,
    )
