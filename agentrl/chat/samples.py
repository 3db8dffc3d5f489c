"""Sample conversations on which a chat template is tested when a model is loaded."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from agentrl.chat.formats.parser import Parser
from agentrl.types.task import Message

MARK = "cut" + secrets.token_hex(12)
"""Marks the positions where a text is cut before it is tokenised. Letters and digits, so that every template preserves
it (trimmed, JSON-quoted or not); random, so that no observation can contain it."""

STAND_IN = "reply-4f1d9c"
PROBE = "probe-7be2a0"
USER: Message = {"role": "user", "content": "Hello."}
REPLY: Message = {"role": "assistant", "content": STAND_IN}


def result(text: str, long_ids: bool) -> Message:
    """Returns a tool's result."""
    return {"role": "tool", "name": "probe", "tool_call_id": "call00000" if long_ids else "call_0", "content": text}


def sample_conversations(parser: Parser, controls: Sequence[str]) -> list[list[Message]]:
    """Returns conversations that test templates: several turns, parallel results, odd whitespace, unicode, thinking.

    Every one ends with an assistant message, whose prompt is the last one compared. Replies neither begin nor end
    with whitespace: some templates trim them, which is harmless, because a reply is never rendered again.

    Args:
        controls: texts of control tokens, which a tool result may contain as plain text.
    """
    call = parser.format("", [("probe", {"text": "a b"})])
    try:
        several = parser.format("Two at once.", [("probe", {"text": "x"}), ("probe", {"text": "y"})])
    except ValueError:  # the format holds one call a reply
        several = parser.format("Once more.", [("probe", {"text": "x"})])
    opened, closed = parser.thought
    system: Message = {"role": "system", "content": "Be brief.\nUse the tools."}
    done = _said("Done.")
    tools = [
        _user("Where is it?"),
        _said(call),
        _result(0, "room 7"),
        _said(several),
        _result(0, "  two spaces, a tab\t, and newlines \n\n"),
        _result(1, ""),
        _said("Looking further."),
        _result(0, "\n\n"),
        _result(1, '{"naïve": "日本語 🙂 \\n", "n": 1}\r\n'),
        _result(2, " ".join(["quoted:", *controls[:8]])),
        done,
    ]
    thinking = [
        _user("  What is 2 + 2?\n"),
        _said(f"{opened}\nEasy.\n{closed}\n\nFour."),
        _user("And 3 + 3?"),
        _said(f"{opened}\nEasy, too.\n{closed}\n\n{call}"),
        _result(0, "6"),
        _user("Go on."),
        _said("Six."),
        _user("Thanks."),
        done,
    ]
    return [[system, *tools], tools, [system, *thinking]]


def conversation_with_images() -> list[Message]:
    """Returns a conversation with images in messages of the user and in a result, for vision models."""

    def seen(blob: str, width: int) -> dict[str, object]:
        return {"type": "image", "blob": blob * 64, "width": width, "height": 40, "format": "png"}

    def text(said: str) -> dict[str, object]:
        return {"type": "text", "text": said}

    return [
        {"role": "user", "content": [text("What is it?"), seen("a", 40)]},
        _said("A house."),
        {**_result(0, ""), "content": [text("room 7\n"), seen("b", 90), seen("a", 40)]},
        _said("A room."),
        {"role": "user", "content": [seen("b", 90), text("And this one?")]},
        _said("Done."),
    ]


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


def _said(text: str) -> Message:
    return {"role": "assistant", "content": text}


def _result(index: int, text: str) -> Message:
    return {"role": "tool", "name": "probe", "tool_call_id": f"call_{index}", "content": text}
