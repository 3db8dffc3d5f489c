"""Rows of ShareGPT: `conversations` of `{from, value}`, with calls and results as LLaMA-Factory names them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from agentrl.chat.formats.parser import Parser
from agentrl.integrations.exchange.told import ToldEpisode
from agentrl.types.task import Message

_FROM = {"user": "human", "assistant": "gpt", "tool": "observation"}


def row(told: ToldEpisode) -> dict[str, Any]:
    """The row of an episode. Its tools are JSON text; reasoning is a part of the text, as the model writes it."""
    episode = told.episode
    return {
        "conversations": [turn for message in told.messages for turn in _turns(message, told.parser)],
        "tools": json.dumps([tool["function"] for tool in told.tools], ensure_ascii=False),
        "id": episode.id,
        "reward": episode.reward,
    }


def _turns(message: Message, parser: Parser) -> Iterator[dict[str, str]]:
    text, calls = message["content"], message.get("tool_calls") or []
    if thought := message.get("reasoning_content"):
        text = parser.thinking(thought, text)
    if text or not calls:
        role = str(message["role"])
        yield {"from": _FROM.get(role, role), "value": text}
    if calls:
        functions = [call["function"] for call in calls]
        written = functions[0] if len(functions) == 1 else functions
        yield {"from": "function_call", "value": json.dumps(written, ensure_ascii=False)}
