"""Roll-in by a guide: a reply begins with the first words of what another model answers to the same prompt."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import Field

from agentrl import ToolAgent
from agentrl.chat.formats.parser import Reply
from agentrl.rollouts.conversation.conversation import Conversation
from agentrl.rollouts.session import Session


class RollIn(ToolAgent):
    """Extends `tool_agent`: the policy `guide` begins some of the replies.

    Args:
        share: probability that a reply begins with words of the guide's; how many is drawn, each number alike.
    """

    def __init__(self, share: Annotated[float, Field(ge=0, le=1)] = 0.2) -> None:
        self.share = share

    async def reply(self, conversation: Conversation) -> Reply:
        """Samples a reply, after the first words of the guide or from its beginning; always that in evaluations."""
        session = conversation if isinstance(conversation, Session) else None
        if session is None or session.split == "eval" or session.rng.random() >= self.share:
            return await conversation.generate()
        guide = session.context(f"guide {len(session.turns)}", list(session.messages), policy="guide")
        await guide.generate()
        return await session.generate(begin=self._first_words(session, guide.turns[-1].text))

    def _first_words(self, session: Session, text: str) -> str:
        ends = [found.start() for found in re.finditer(r"\s+\S", text.strip())]
        return text.strip()[: session.rng.choice(ends)] if ends else ""
