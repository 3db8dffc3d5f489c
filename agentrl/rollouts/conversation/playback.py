"""Replays the turns before a live fork: repeats the agent's actions from the record."""

from __future__ import annotations

from agentrl.rollouts.conversation.conversation import Conversation
from agentrl.rollouts.conversation.resumption import Resumption
from agentrl.types.episode import Branch, Turn


async def play_back(session: Conversation, resumes: Resumption) -> None:
    """Replays the session of a fork, which has been opened, up to its first new turn.

    Raises:
        ReplayDiffers: calls that ran again gave other results than those of the record.
    """
    for turn in resumes.record.turns[: resumes.turn]:
        _rewrite(session, resumes, turn.index)
        await _again(session, turn)
        # Some come from the agent, which does not run again.
        session.turns[-1].rewards = {**turn.rewards}
    _rewrite(session, resumes, resumes.turn)
    resumes.check(session.opening, session.turns, session.name)
    await session.state.reach()
    session.outcome = None


def _rewrite(session: Conversation, resumes: Resumption, number: int) -> None:
    fork = resumes.fork(number)
    if isinstance(fork, Branch) and fork.messages is not None:
        session.rewrite(fork.messages, reason="summary" if fork.reason == "summary" else "rewrite")


async def _again(session: Conversation, turn: Turn) -> None:
    """Replays one turn and its observations, in the order of the record."""
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
