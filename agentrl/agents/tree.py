"""Agent with tree rollouts: resamples the turns with the highest policy uncertainty."""

from __future__ import annotations

from statistics import fmean
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from agentrl.rollouts.agent import ToolAgent
from agentrl.rollouts.faults.failures import LimitReached
from agentrl.rollouts.session import Session
from agentrl.types.engine import ContextOverflow
from agentrl.types.episode import Node


class Place(NamedTuple):
    """Candidate for a fork: a sampled turn and its surprise.

    Attributes:
        surprise: negative mean log-probability of the turn's tokens.
    """

    session: Session
    turn: int
    surprise: float


class TreeAgent(ToolAgent):
    """Extends `tool_agent`: then forks the episode at the turns with the highest surprise.

    Each fork is an episode of the group, and its turns may be forked too. Each prompt is forked at most once.
    Evaluations are not forked.

    Args:
        forks: maximum forks per episode.
        tokens: number of sampled tokens of the episode and its forks after which no fork begins; None: unlimited.
        by: choice of the next turn: `surprise`: lowest mean log-probability of its tokens (the first turn, for engines
            without log-probabilities); `random`: uniform.
    """

    def __init__(
        self,
        forks: Annotated[int, Field(gt=0)] = 3,
        tokens: Annotated[int, Field(gt=0)] | None = None,
        by: Literal["surprise", "random"] = "surprise",
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
            open_places.remove(place)
            async with place.session.fork(place.turn) as fork:
                await super().run(fork)
            open_places += _places(fork)[1:]  # The first has the prompt just forked.
            sampled += _tokens(fork)

    def _chosen(self, places: list[Place], session: Session) -> Place:
        if self.by == "random":
            return session.rng.choice(places)
        return max(places, key=lambda place: place.surprise)


def _places(session: Session) -> list[Place]:
    """Returns the turns sampled in this session, without those inherited from its parent."""
    return [Place(session, index, -fmean(node.logprobs or [0.0])) for index, node in _sampled(session)]


def _tokens(session: Session) -> int:
    return sum(len(node.token_ids) for _, node in _sampled(session))


def _sampled(session: Session) -> list[tuple[int, Node]]:
    return [(turn.index, node) for turn in session.turns if (node := session.sampled(turn)) is not None]
