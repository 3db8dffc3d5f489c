"""The `answer` tool: ends the episode with an answer, for models that do better with a call than with free text."""

from __future__ import annotations

from agentrl.tools.base import Tool, ToolResult, tool


class Answer(Tool):
    """Offers `answer(text)`. What is given becomes `episode.answer`."""

    stateless = True

    @tool
    async def answer(self, text: str) -> ToolResult:
        """Give the final answer. This ends the task.

        Args:
            text: The answer alone, as short as possible.
        """
        return ToolResult(text="", done=True, answer=text.strip())
