"""The agent that grows a tree: it samples the turns again of which the policy was least certain."""

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
    """Where a tree may be forked: a turn that was sampled, and how surprising it was.

    Attributes:
        surprise: minus the mean log-probability of its tokens.
    """

    session: Session
    turn: int
    surprise: float


class TreeAgent(ToolAgent):
    """Works as `tool_agent`, and then forks the episode: it goes on again from the turns that surprise the policy most.

    Each fork is an episode of the group, whose turns may be forked in their turn. No prompt is forked twice.
    Evaluations are not forked.

    Args:
        forks: most forks of an episode.
        tokens: sampled tokens of the episode and its forks, from which on no further fork begins; None: any number.
        by: which turn is next: `surprise`: the one whose tokens had the lowest mean log-probability (of an engine that
            gives none, the first); `random`: any.
    """

    def __init__(
        self,
        forks: Annotated[int, Field(gt=0)] = 3,
        tokens: Annotated[int, Field(gt=0)] | None = None,
        by: Literal["surprise", "random"] = "surprise",
    ) -> None:
        self.forks, self.tokens, self.by = forks, tokens, by

    async def run(self, session: Session) -> None:
        """The loop of `tool_agent`, then one fork after another. A limit ends the episode after its forks."""
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
            open_places += _places(fork)[1:]  # The first has the prompt that was just forked.
            sampled += _tokens(fork)

    def _chosen(self, places: list[Place], session: Session) -> Place:
        if self.by == "random":
            return session.rng.choice(places)
        return max(places, key=lambda place: place.surprise)


def _places(session: Session) -> list[Place]:
    """The turns that were sampled in this session, without those that it took from its parent."""
    return [Place(session, index, -fmean(node.logprobs or [0.0])) for index, node in _sampled(session)]


def _tokens(session: Session) -> int:
    return sum(len(node.token_ids) for _, node in _sampled(session))


def _sampled(session: Session) -> list[tuple[int, Node]]:
    return [(turn.index, node) for turn in session.turns if (node := session.sampled(turn)) is not None]
