"""Agent with context compaction: a summary by the policy replaces earlier turns."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from agentrl.rollouts.agent import ToolAgent
from agentrl.rollouts.session import Session

INSTRUCTION = (
    "Your context is nearly full. Write a summary of the work so far: what you found out, what you did, and what is "
    "left to do. Only the task and this summary will be kept."
)


class CompactingAgent(ToolAgent):
    """Extends `tool_agent`: when the context is nearly full, asks the policy for a summary and continues from it.

    The summary is an ordinary turn: it is trained and gets credit. The next turns are a new branch that begins with the
    opening of the episode and the summary.

    Args:
        at_tokens: minimum length of the next prompt for compaction.
        at_fraction: the same as a fraction of the engine's context; used without `at_tokens`.
        instruction: user message that asks for the summary.
    """

    def __init__(
        self,
        at_tokens: Annotated[int, Field(gt=0)] | None = None,
        at_fraction: Annotated[float, Field(gt=0, le=1)] = 0.75,
        instruction: str = INSTRUCTION,
    ) -> None:
        self.at_tokens, self.at_fraction, self.instruction = at_tokens, at_fraction, instruction
        self._compacted = 0

    async def run(self, session: Session) -> None:
        """Runs the loop of `tool_agent`, with a check of the context before each turn."""
        while session.outcome is None:
            if self._is_full(session):
                await self._compact(session)
            await self.take_turn(session)

    def _is_full(self, session: Session) -> bool:
        """Returns True if the context exceeds its limit, except right after a summary, when nothing can be dropped."""
        limit = self.at_tokens or int(self.at_fraction * session.engine.max_context)
        return len(session.turns) > self._compacted and session.prompt_tokens() >= limit

    async def _compact(self, session: Session) -> None:
        session.say(self.instruction)
        reply = await session.generate()
        summary = {"role": "user", "content": f"A summary of the work so far:\n{reply.text.strip()}"}
        session.rewrite([*session.opening, summary], reason="summary")
        self._compacted = len(session.turns)
