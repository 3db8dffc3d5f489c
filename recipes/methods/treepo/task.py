"""An agent that samples a tree of bounded width, level by level."""

from __future__ import annotations

from statistics import fmean
from typing import Annotated

from pydantic import Field

from agentrl import ToolAgent
from agentrl.rollouts.faults.failures import LimitReached
from agentrl.rollouts.session import Session
from agentrl.types.engine import ContextOverflow


class WideAgent(ToolAgent):
    """Plays an episode, and branches it level by level until the tree has `width` paths.

    At each turn the paths that the policy was least sure of branch first, into at most `branch` ways. Where
    paths have ended early there is room left: paths fall back to one of their turns, drawn at random. A path that
    repeats itself is ended.

    Args:
        width: paths of a tree.
        branch: ways that leave a turn, at most.
    """

    def __init__(self, width: Annotated[int, Field(gt=1)] = 4, branch: Annotated[int, Field(gt=1)] = 2) -> None:
        self.forks, self.branch = width - 1, branch

    async def run(self, session: Session) -> None:
        """Plays the first path, then the others. A limit ends the episode after them."""
        try:
            await self._play(session)
        except (LimitReached, ContextOverflow):
            await self._grow(session)
            raise
        await self._grow(session)

    async def _play(self, session: Session) -> None:
        while session.outcome is None:
            await self.take_turn(session)
            acted = [turn.action for turn in session.turns]
            if session.outcome is None and acted[-1] in acted[:-1]:
                session.finish("repetition")

    async def _grow(self, session: Session) -> None:
        paths, level = [session], 0
        while session.forks_left and any(len(path.turns) > level for path in paths):
            deep = [path for path in paths if len(path.turns) > level and path.sampled(path.turns[level])]
            for path in sorted(deep, key=lambda each: surprise(each, level), reverse=True) * (self.branch - 1):
                if session.forks_left:
                    paths.append(await self._fork(path, level))
            level += 1
        while session.forks_left:
            path = session.rng.choice(paths)
            own = [number for number, turn in enumerate(path.turns) if path.sampled(turn)]
            if not own:
                return
            paths.append(await self._fork(path, session.rng.choice(own)))

    async def _fork(self, path: Session, turn: int) -> Session:
        async with path.fork(turn) as fork:
            await self._play(fork)
        return fork


def surprise(path: Session, turn: int) -> float:
    """Negative mean log-probability of a turn's tokens; 0 for an engine that does not tell."""
    node = path.sampled(path.turns[turn])
    return -fmean((node and node.logprobs) or [0.0])
