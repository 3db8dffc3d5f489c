"""The `judge` tool: the agent judges the usefulness of its last search results."""

from __future__ import annotations

from agentrl.tools.base import Tool, tool


class JudgeTool(Tool):
    """Offers `judge(useful)`, ReSeek's JUDGE action. The reward `evidence_judgement` scores it."""

    @tool
    async def judge(self, useful: bool) -> str:
        """Say whether the results that you saw last help to answer the question.

        Args:
            useful: Whether they do.
        """
        return "Go on from these results." if useful else "Leave these results aside, and search for something else."
