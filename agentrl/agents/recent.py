"""Agent with a sliding window: the prompt of a turn contains only the last few replies."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from agentrl.rollouts.agent import ToolAgent
from agentrl.rollouts.session import Session


class RecentAgent(ToolAgent):
    """Extends `tool_agent`: drops all but the last replies after each turn.

    Prompts thus stay short in long episodes, as in GiGPO's experiments (arXiv:2505.10978) with a fixed number of last
    steps. A drop begins a new branch; each reply is trained once, with the prompt that it was sampled from.

    Args:
        replies: number of last replies in the prompt, each with the observation before it. 0: only the newest
            observation.
        opening: also keeps the opening of the episode (the task, the environment's first observation). The system
            message always stays.
    """

    def __init__(self, replies: Annotated[int, Field(ge=0)] = 1, opening: bool = True) -> None:
        self.replies, self.keeps_opening = replies, opening

    async def run(self, session: Session) -> None:
        """Runs the loop of `tool_agent` and shortens the context after each turn."""
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
