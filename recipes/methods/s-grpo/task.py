"""The serial group: one episode, left at earlier turns with an answer, and a reward that decays from exit to exit."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from agentrl import ToolAgent
from agentrl.rollouts.faults.failures import LimitReached
from agentrl.rollouts.session import Session
from agentrl.types.engine import ContextOverflow
from agentrl.types.episode import Episode

NOW = "Time is limited. Give the answer now."


class EarlyExit(ToolAgent):
    """Extends `tool_agent`: then leaves the episode before some of its turns, and asks for the answer at once.

    Args:
        exits: maximum number of exits; the turns are drawn.
    """

    def __init__(self, exits: Annotated[int, Field(gt=0)] = 2) -> None:
        self.forks = exits

    async def run(self, session: Session) -> None:
        """Runs the loop of `tool_agent`, then the exits. A limit ends the episode after its exits."""
        try:
            await super().run(session)
        except (LimitReached, ContextOverflow):
            await self._leave(session)
            raise
        await self._leave(session)

    async def _leave(self, session: Session) -> None:
        turns = [turn.index for turn in session.turns]
        for turn in sorted(session.rng.sample(turns, min(len(turns), session.forks_left))):
            async with session.fork(turn) as fork:
                fork.say(NOW)
                reply = await fork.generate()
                fork.finish("answer", reply.text.strip() if reply.answer is None else reply.answer)


def decayed(group: list[Episode], *, right: str) -> list[float]:
    """2^-k for the right answer that is preceded by k right answers at earlier exits; 0 for wrong ones.

    The order is that of the exits: the number of turns. The whole episode is the last.

    Args:
        right: the component that says whether an answer is right.
    """
    found, out = 0, [0.0] * len(group)
    for place in sorted(range(len(group)), key=lambda k: (len(group[k].own_turns), group[k].parent is None)):
        if (group[place].components.get(right) or 0.0) > 0:
            out[place] = 2.0**-found
            found += 1
    return out
