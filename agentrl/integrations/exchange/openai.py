"""Rows of chat completions: `messages` and `tools`, as fine-tuning APIs and TRL take them."""

from __future__ import annotations

import json
from typing import Any

from agentrl.integrations.exchange.told import ToldEpisode
from agentrl.types.task import Message


def row(told: ToldEpisode) -> dict[str, Any]:
    """The row of an episode. Arguments of calls are JSON text."""
    episode = told.episode
    return {
        "messages": [_message(message) for message in told.messages],
        **({"tools": told.tools} if told.tools else {}),
        "id": episode.id,
        "task": episode.task.id,
        "status": episode.status,
        "reward": episode.reward,
        "components": episode.components,
    }


def _message(message: Message) -> Message:
    if not (calls := message.get("tool_calls")):
        return message
    return {**message, "tool_calls": [_call(call) for call in calls]}


def _call(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    return {**call, "function": {**function, "arguments": json.dumps(function["arguments"], ensure_ascii=False)}}
