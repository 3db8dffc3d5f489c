"""Agent with alternatives: turns of an episode are sampled again, in forks."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from agentrl.rollouts.agent import ToolAgent
from agentrl.rollouts.faults.failures import LimitReached
from agentrl.rollouts.session import Session
from agentrl.types.engine import ContextOverflow


class CounterfactualAgent(ToolAgent):
    """Extends `tool_agent`: then samples other turns in the place of some, each in a fork that is played to its end.

    Turns are drawn at random, without the first, which the other episodes of the group are alternatives of. The credit
    `c3` compares them. Evaluations are not forked.

    Args:
        forks: maximum forks per episode.
        alternatives: forks of a turn.
    """

    def __init__(self, forks: Annotated[int, Field(gt=0)] = 4, alternatives: Annotated[int, Field(gt=0)] = 1) -> None:
        self.forks, self.alternatives = forks, alternatives

    async def run(self, session: Session) -> None:
        """Runs the episode, then its forks one after another. A limit ends the episode after its forks."""
        try:
            await self.play(session)
        except (LimitReached, ContextOverflow):
            await self._replace(session)
            raise
        await self._replace(session)

    async def play(self, session: Session) -> None:
        """Plays an episode, or a fork, to its end. Subclasses may play another game."""
        await super().run(session)

    async def _replace(self, session: Session) -> None:
        later = [turn.index for turn in session.turns if session.sampled(turn) is not None][1:]
        most = max(1, self.forks // self.alternatives)
        for turn in sorted(session.rng.sample(later, min(most, len(later)))):
            for _ in range(min(self.alternatives, session.forks_left)):
                async with session.fork(turn) as fork:
                    await self.play(fork)
