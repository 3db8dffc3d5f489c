"""The messages with which a chat template is taken apart."""

from __future__ import annotations

import secrets

from agentrl.types.task import Message

MARK = "cut" + secrets.token_hex(12)
"""Put where a text is cut before it is tokenised. Letters and digits, so that every template lets it pass (trimmed,
JSON-quoted or not); random, so that no observation can contain it."""

STAND_IN = "reply-4f1d9c"
PROBE = "probe-7be2a0"
USER: Message = {"role": "user", "content": "Hello."}
REPLY: Message = {"role": "assistant", "content": STAND_IN}


def result(text: str, long_ids: bool) -> Message:
    """A tool's result."""
    return {"role": "tool", "name": "probe", "tool_call_id": "call00000" if long_ids else "call_0", "content": text}
