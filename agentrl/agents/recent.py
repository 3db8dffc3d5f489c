"""The agent that forgets: the prompt of a turn holds the last few replies, not the whole episode."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from agentrl.rollouts.agent import ToolAgent
from agentrl.rollouts.session import Session


class RecentAgent(ToolAgent):
    """Works as `tool_agent`. After every turn it drops what lies further back than its last replies.

    Prompts then stay equally short however long an episode is, as in GiGPO's experiments (arXiv:2505.10978), whose
    prompts show a fixed number of the last steps. What follows a dropped turn is a new branch; each reply is trained
    once, under the prompt that it was sampled under.

    Args:
        replies: how many of its last replies the policy sees, each with what it replied to. 0: the newest observation
            alone.
        opening: whether the opening of the episode (the task, what an environment showed first) stays, too. The system
            message always does.
    """

    def __init__(self, replies: Annotated[int, Field(ge=0)] = 1, opening: bool = True) -> None:
        self.replies, self.keeps_opening = replies, opening

    async def run(self, session: Session) -> None:
        """The loop of `tool_agent`, and a shorter context after every turn."""
        while session.outcome is None:
            await self.take_turn(session)
            if session.outcome is None:
                self._forget(session)

    def _forget(self, session: Session) -> None:
        stays = [
            message for message in session.opening if self.keeps_opening or message["role"] in ("system", "developer")
        ]
        messages = session.messages
        said = [at for at in range(len(stays), len(messages)) if messages[at]["role"] == "assistant"]
        if len(said) > self.replies:
            session.rewrite([*stays, *messages[said[-1 - self.replies] + 1 :]])
