"""Proof that a prompt contains the text of each of its messages."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

from agentrl.chat.samples import MARK, PROBE
from agentrl.types.errors import RenderError
from agentrl.types.task import Message

Render = Callable[[list[Message]], str]
"""Renders the text of a prompt, or of its new part."""

LEFT_OUT = {
    "thoughts": "the chat template drops the thoughts of earlier replies; here every reply stays as it was sampled",
    "beside calls": "the chat template drops what an earlier reply says beside its calls, where it renders it again",
}
"""Parts of replies that a prompt may omit, and the note about a template that omits them."""

_REMEDIES = {
    "system": "say it in agent.system or in the first message of the user",
    "tool": "let a result follow the reply that called, or say it in a message of the user",
    "user": "say it in other words, or in another order of messages",
    "assistant": "one reply between two other messages, its calls as text in the format of agent.format",
}
_OTHER = "give it another role"
_ORDERS = 4096
"""Maximum of cached orders of roles."""


class Presence:
    """Proves that prompts contain their messages.

    Two proofs: once for every order of roles, with marked texts in place of the messages'; and for the text of every
    message other than replies, since a template may cut a text depending on its content. Replies may omit the parts of
    `LEFT_OUT`.

    Args:
        name: of the tokenizer.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._proven: set[Hashable] = set()

    def prove(self, messages: Sequence[Message], text: str, render: Render, kind: Hashable) -> None:
        """Proves that a prompt contains its messages.

        Args:
            text: the prompt of these messages.
            render: renders the prompt of other messages.
            kind: of the prompt, e.g. an opening or an extension: each kind is proven separately.

        Raises:
            RenderError: the template omits one, or a part of it.
        """
        order = (kind, *map(_shape, messages))
        if order not in self._proven:
            self._prove_order(messages, render)
            if len(self._proven) >= _ORDERS:
                self._proven.clear()
            self._proven.add(order)
        shown = text.replace(MARK, "")
        for index, message in enumerate(messages):
            said = [] if message["role"] == "assistant" else _texts(message)
            for part, each in enumerate(said):
                if not _holds(shown, each) and not _says(_place_of(messages, index, part, text, render), each):
                    raise self._left_out(messages, index, "a part of ")

    def _prove_order(self, messages: Sequence[Message], render: Render) -> None:
        asked = [_saying(message, f"{PROBE}x{index}x") for index, message in enumerate(messages)]
        text = render(asked)
        for index, message in enumerate(asked):
            for probe in _probes(message):
                if probe not in text:
                    raise self._left_out(messages, index)

    def _left_out(self, messages: Sequence[Message], index: int, what: str = "") -> RenderError:
        role = str(messages[index]["role"])
        before = f", behind one of {messages[index - 1]['role']}" if index else ""
        return RenderError(
            f"the chat template leaves out {what}message {index} ({role}) of {len(messages)}{before}",
            place=self._name,
            remedy=f"{_REMEDIES.get(role, _OTHER)}; or name a template that shows it (model.template)",
        )


_WORD = re.compile(r"(?<![/\w])\w+")
"""A word. A word after a slash may be a switch of the template (SmolLM3's /no_think)."""


def _shape(message: Message) -> Hashable:
    """Returns the form of a message: everything except the text on which a template may depend."""
    calls = message.get("tool_calls")
    content = message["content"]
    return *message, message["role"], isinstance(content, str), bool(content), isinstance(calls, list) and len(calls)


def _saying(message: Message, text: str) -> Message:
    """Replaces the text of a message; in a reply with calls, that of the calls."""
    if calls := message.get("tool_calls"):
        return {**message, "tool_calls": [_calling(call, f"{text}{k}x") for k, call in enumerate(calls)]}
    content = message["content"]
    if isinstance(content, str):
        return {**message, "content": text} if content.strip() else message
    parts = [part for part in content if part.get("type") != "text"]
    return {**message, "content": [{"type": "text", "text": text}, *parts]} if len(parts) < len(content) else message


def _calling(call: Any, text: str) -> Any:
    """Replaces the argument of a call."""
    function = call["function"]
    return {
        **call,
        "function": {**function, "arguments": text if isinstance(function["arguments"], str) else {"text": text}},
    }


def _probes(message: Message) -> Iterator[str]:
    """Yields the marked texts of a message."""
    if calls := message.get("tool_calls"):
        given = [call["function"]["arguments"] for call in calls]
        yield from (each if isinstance(each, str) else each["text"] for each in given)
    else:
        yield from (text for text in _texts(message) if text.startswith(PROBE))


def _texts(message: Message) -> list[str]:
    content = message["content"]
    return [content] if isinstance(content, str) else [part["text"] for part in content if part.get("type") == "text"]


def _place_of(messages: Sequence[Message], index: int, part: int, text: str, render: Render) -> str:
    """Returns the part of a prompt where a text of a message should be; the whole prompt if unknown."""
    content = messages[index]["content"]
    if isinstance(content, str):
        asked: Any = PROBE
    else:
        at = [k for k, each in enumerate(content) if each.get("type") == "text"][part]
        asked = [*content[:at], {"type": "text", "text": PROBE}, *content[at + 1 :]]
    frame = render([*messages[:index], {**messages[index], "content": asked}, *messages[index + 1 :]])
    before, _, behind = frame.partition(PROBE)
    known = text.startswith(before) and text.endswith(behind) and len(text) >= len(before) + len(behind)
    return (text[len(before) : len(text) - len(behind)] if known else text).replace(MARK, "")


def _holds(shown: str, said: str) -> bool:
    """Returns True if a prompt contains a text, literally or in JSON."""
    said = said.strip()
    return said in shown or any(form in shown for form in _as_json(said))


def _says(shown: str, said: str) -> bool:
    """Returns True if a prompt contains the words of a text in their order, in any form of the template."""
    return any(_in_order(shown, _WORD.findall(form)) for form in (said, *_as_json(said)))


def _as_json(text: str) -> list[str]:
    return [json.dumps(text, ensure_ascii=ascii)[1:-1] for ascii in (False, True)]


def _in_order(shown: str, words: Sequence[str]) -> bool:
    at = 0
    for word in words:
        if (found := shown.find(word, at)) < 0:
            return False
        at = found + len(word)
    return True
