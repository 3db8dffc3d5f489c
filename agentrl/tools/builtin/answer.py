"""The `answer` tool: ends the episode with an answer, for models that answer better by a call than in free text."""

from __future__ import annotations

from agentrl.tools.base import Tool, ToolResult, tool


class Answer(Tool):
    """Offers `answer(text)`. The text becomes `episode.answer`."""

    stateless = True

    @tool
    async def answer(self, text: str) -> ToolResult:
        """Give the final answer. This ends the task.

        Args:
            text: The answer alone, as short as possible.
        """
        return ToolResult(text="", done=True, answer=text.strip())
