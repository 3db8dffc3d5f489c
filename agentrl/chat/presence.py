"""The proof that no message vanishes: the text of each is in the prompt that it is part of."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

from agentrl.chat.samples import MARK, PROBE
from agentrl.types.errors import RenderError
from agentrl.types.task import Message

Render = Callable[[list[Message]], str]
"""Makes the text of a prompt, or of the part of it that is new."""

LEFT_OUT = {
    "thoughts": "the chat template drops the thoughts of earlier replies; here every reply stays as it was sampled",
    "beside calls": "the chat template drops what an earlier reply says beside its calls, where it renders it again",
}
"""Parts of replies that a prompt may miss, and the note about a template that leaves them out."""

_REMEDIES = {
    "system": "say it in agent.system or in the first message of the user",
    "tool": "let a result follow the reply that called, or say it in a message of the user",
    "user": "say it in other words, or in another order of messages",
    "assistant": "one reply between two other messages, its calls as text in the format of agent.format",
}
_OTHER = "give it another role"
_ORDERS = 4096
"""Orders of roles that are remembered."""


class Presence:
    """Proves that prompts hold their messages.

    Two proofs: once for every order of roles, with marked texts in the place of the messages'; and for every message
    that is no reply, of its own text, since a template may cut a text at what stands in it. Replies may miss what
    `LEFT_OUT` names.

    Args:
        name: of the tokenizer.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._proven: set[Hashable] = set()

    def prove(self, messages: Sequence[Message], text: str, render: Render, kind: Hashable) -> None:
        """Proves that a prompt holds its messages.

        Args:
            text: the prompt of these messages.
            render: makes the prompt of others.
            kind: of the prompt, such as an opening or an extension: each kind is proven for itself.

        Raises:
            RenderError: the template leaves one out, or a part of it.
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
"""A word. One behind a stroke may be a switch of the template (SmolLM3's /no_think)."""


def _shape(message: Message) -> Hashable:
    """The form of a message: all that a template may look at besides the text."""
    calls = message.get("tool_calls")
    content = message["content"]
    return *message, message["role"], isinstance(content, str), bool(content), isinstance(calls, list) and len(calls)


def _saying(message: Message, text: str) -> Message:
    """A message that says another text. A reply that calls says it in its calls."""
    if calls := message.get("tool_calls"):
        return {**message, "tool_calls": [_calling(call, f"{text}{k}x") for k, call in enumerate(calls)]}
    content = message["content"]
    if isinstance(content, str):
        return {**message, "content": text} if content.strip() else message
    parts = [part for part in content if part.get("type") != "text"]
    return {**message, "content": [{"type": "text", "text": text}, *parts]} if len(parts) < len(content) else message


def _calling(call: Any, text: str) -> Any:
    """A call with another argument."""
    function = call["function"]
    return {
        **call,
        "function": {**function, "arguments": text if isinstance(function["arguments"], str) else {"text": text}},
    }


def _probes(message: Message) -> Iterator[str]:
    """The marked texts of a message."""
    if calls := message.get("tool_calls"):
        given = [call["function"]["arguments"] for call in calls]
        yield from (each if isinstance(each, str) else each["text"] for each in given)
    else:
        yield from (text for text in _texts(message) if text.startswith(PROBE))


def _texts(message: Message) -> list[str]:
    content = message["content"]
    return [content] if isinstance(content, str) else [part["text"] for part in content if part.get("type") == "text"]


def _place_of(messages: Sequence[Message], index: int, part: int, text: str, render: Render) -> str:
    """The part of a prompt where a text of a message should be; the whole prompt if the place is not known."""
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
    """Looks for a text in a prompt, as it is or as JSON writes it."""
    said = said.strip()
    return said in shown or any(form in shown for form in _as_json(said))


def _says(shown: str, said: str) -> bool:
    """Looks for the words of a text in their order, in whatever form the template writes texts."""
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
