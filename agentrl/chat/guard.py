"""Guard of prompts: untrusted text cannot contain control tokens, in any part of a prompt."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.chat.formats.parser import Parser
from agentrl.chat.recognise import TOOL, called_message
from agentrl.chat.samples import MARK, PROBE, REPLY, USER, result
from agentrl.chat.tokenizer import Tokenizer, break_up
from agentrl.types.errors import RenderError
from agentrl.types.task import Message

Pattern = re.Pattern[str] | None


@dataclass(frozen=True)
class Guard:
    """Breaks up the texts of control tokens in all input of a chat template.

    Attributes:
        own: for replies: tokens that end a turn.
        said: for text of the recipe and the user: special tokens, and those that the template writes around messages.
        foreign: for results and tool definitions, which come from servers and pages: also the tokens around results,
            calls and thoughts.
    """

    own: Pattern
    said: Pattern
    foreign: Pattern

    def message(self, message: Message) -> Message:
        """Returns a message that is safe to render."""
        role = message["role"]
        if role == "assistant":
            return {key: _broken_up(value, self.own) for key, value in message.items()}
        pattern = self.said if role in _SPEAKERS else self.foreign
        return {key: _broken_up(value, pattern if key == "content" else self.foreign) for key, value in message.items()}

    def tools(self, definitions: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Returns tool definitions that are safe to render."""
        return [_broken_up(definition, self.foreign) for definition in definitions]


def frames(tokenizer: Tokenizer, parser: Parser, long_ids: bool) -> set[str]:
    """Returns the control tokens that the template, or a model in the parser's format, writes around results, calls and
    thoughts. Many vocabularies do not mark them as special (Qwen's `<tool_response>` and `<think>`).

    Args:
        long_ids: whether the template requires ids of nine characters.
    """
    opened, closed = parser.thought
    thinking = {"role": "assistant", "content": f"{opened}\n{PROBE}\n{closed}\n\n{PROBE}", "reasoning_content": PROBE}
    called, answered = called_message("probe", long_ids), result(PROBE, long_ids)
    written = [opened, closed]
    with contextlib.suppress(ValueError):
        written.append(parser.format(PROBE, [("probe", {"text": PROBE})]))
    for messages in ([USER, REPLY, answered], [USER, called, answered], [USER, thinking], [USER, called]):
        for tools in (None, [TOOL]):
            with contextlib.suppress(RenderError):
                written.append(tokenizer.render(messages, tools, True))
    return {text for text in tokenizer.controls if any(text in each for each in written)}


def _broken_up(value: Any, pattern: Pattern) -> Any:
    """Breaks up control tokens in a text, or in all texts of a JSON value."""
    if isinstance(value, str):
        return break_up(value, pattern, MARK) if pattern is not None and pattern.search(value) else value
    if isinstance(value, dict):
        return {_broken_up(key, pattern): _broken_up(inner, pattern) for key, inner in value.items()}
    return [_broken_up(inner, pattern) for inner in value] if isinstance(value, list) else value


_SPEAKERS: Collection[str] = frozenset({"system", "developer", "user"})
"""Roles with contents of the recipe and the user. Some templates also read their other keys."""
