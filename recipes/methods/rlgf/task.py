"""Roll-in by a guide: a reply begins with the first words of what another model answers to the same prompt."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import Field

from agentrl import ToolAgent
from agentrl.rollouts.session import Session


class RollIn(ToolAgent):
    """Extends `tool_agent`: the policy `guide` begins some of the replies.

    Args:
        share: probability that a reply begins with words of the guide's; how many is drawn, each number alike.
    """

    def __init__(self, share: Annotated[float, Field(ge=0, le=1)] = 0.2) -> None:
        self.share = share

    async def run(self, session: Session) -> None:
        """Runs turns until the episode ends. The guide begins none in evaluations and in demonstrations."""
        while session.outcome is None:
            begun = session.split not in ("eval", "demo") and session.rng.random() < self.share
            await self.take_turn(session, await self._first_words(session) if begun else "")

    async def _first_words(self, session: Session) -> str:
        guide = session.context(f"guide {len(session.turns)}", list(session.messages), policy="guide")
        await guide.generate()
        text = guide.turns[-1].text.strip()
        ends = [found.start() for found in re.finditer(r"\s+\S", text)]
        return text[: session.rng.choice(ends)] if ends else ""
