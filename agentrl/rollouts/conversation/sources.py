"""Sources of an episode's turns."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any, Protocol

from agentrl.chat.formats.parser import Reply
from agentrl.rollouts.conversation.state import EpisodeState
from agentrl.types.episode import TurnDraft

Conversation = Any
"""A `Conversation`, whose module imports this one."""


class TurnSource(Protocol):
    """Source of an episode's turns: its policies, or a record and then its policies.

    Attributes:
        repeats: whether turns of a record are repeated now.
    """

    @property
    def repeats(self) -> bool: ...

    def begin(self, state: EpisodeState) -> None:
        """Prepares the state of the episode, before the agent runs."""
        ...

    def turn(self, conversation: Conversation, number: int, agent: str, begin: str) -> Coroutine[Any, Any, Reply]:
        """Adds the next turn to a conversation.

        Args:
            number: of the turn in the episode.
            agent: the speaking role.
            begin: the beginning of the reply.
        """
        ...

    async def play_back(self, session: Conversation) -> None:
        """Plays the turns of the record in a fork of a running episode, in which no agent runs from the beginning."""
        ...

    def check_end(self, turns: Sequence[TurnDraft]) -> None:
        """Checks at the end of the agent that the turns are all that it had to play."""
        ...


class SampledTurns:
    """Source of the turns of an episode that resumes no other: policies sample all of them."""

    repeats = False

    def begin(self, state: EpisodeState) -> None:
        """Does nothing."""

    def turn(self, conversation: Conversation, number: int, agent: str, begin: str) -> Coroutine[Any, Any, Reply]:
        """Samples the next turn."""
        sampled: Coroutine[Any, Any, Reply] = conversation.sample(number, agent, begin)
        return sampled

    async def play_back(self, session: Conversation) -> None:
        """Does nothing: there is no record."""

    def check_end(self, turns: Sequence[TurnDraft]) -> None:
        """Does nothing: every turn was sampled."""
