"""Agent with tree rollouts: resamples the turns with the highest policy uncertainty."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import Annotated, Literal

from pydantic import Field

from agentrl.rollouts.agent import ToolAgent
from agentrl.rollouts.faults.failures import LimitReached
from agentrl.rollouts.session import Session
from agentrl.types.engine import ContextOverflow
from agentrl.types.episode import Node


@dataclass(eq=False)
class Place:
    """Candidate for a fork: a sampled turn and its surprise.

    Attributes:
        surprise: negative mean log-probability of the turn's tokens; the mean over all turns sampled there.
        times: number of turns that were sampled there.
    """

    session: Session
    turn: int
    surprise: float
    times: int = 1

    def sampled_again(self, surprise: float) -> None:
        """Counts one more turn that was sampled there."""
        self.surprise = (self.surprise * self.times + surprise) / (self.times + 1)
        self.times += 1


class TreeAgent(ToolAgent):
    """Extends `tool_agent`: then forks the episode at the turns with the highest surprise.

    Each fork is an episode of the group, and its turns may be forked too. Each prompt is forked at most once, except by
    `density`. Evaluations are not forked.

    Args:
        forks: maximum forks per episode.
        tokens: number of sampled tokens of the episode and its forks after which no fork begins; None: unlimited.
        by: choice of the next turn: `surprise`: lowest mean log-probability of its tokens (the first turn, for engines
            without log-probabilities); `random`: uniform; `density`: the greatest surprise for each turn sampled from
            the same prompt, so that a prompt may be forked again (CARL, arXiv:2512.04949, Eq. 12).
    """

    def __init__(
        self,
        forks: Annotated[int, Field(gt=0)] = 3,
        tokens: Annotated[int, Field(gt=0)] | None = None,
        by: Literal["surprise", "random", "density"] = "surprise",
    ) -> None:
        self.forks, self.tokens, self.by = forks, tokens, by

    async def run(self, session: Session) -> None:
        """Runs the loop of `tool_agent`, then the forks one after another. A limit ends the episode after its forks."""
        try:
            await super().run(session)
        except (LimitReached, ContextOverflow):
            await self._grow(session)
            raise
        await self._grow(session)

    async def _grow(self, session: Session) -> None:
        open_places = _places(session)
        sampled = _tokens(session)
        while session.forks_left and open_places and (self.tokens is None or sampled < self.tokens):
            place = self._chosen(open_places, session)
            async with place.session.fork(place.turn) as fork:
                await super().run(fork)
            grown = _places(fork)  # The first has the prompt just forked.
            if self.by == "density":
                place.sampled_again(grown[0].surprise if grown else 0.0)
            else:
                open_places.remove(place)
            open_places += grown[1:]
            sampled += _tokens(fork)

    def _chosen(self, places: list[Place], session: Session) -> Place:
        if self.by == "random":
            return session.rng.choice(places)
        if self.by == "density":
            return max(places, key=lambda place: place.surprise / place.times)
        return max(places, key=lambda place: place.surprise)


def _places(session: Session) -> list[Place]:
    """Returns the turns sampled in this session, without those inherited from its parent."""
    return [Place(session, index, -fmean(node.logprobs or [0.0])) for index, node in _sampled(session)]


def _tokens(session: Session) -> int:
    return sum(len(node.token_ids) for _, node in _sampled(session))


def _sampled(session: Session) -> list[tuple[int, Node]]:
    return [(turn.index, node) for turn in session.turns if (node := session.sampled(turn)) is not None]
