"""Harmony, the format of gpt-oss: a reply is a sequence of messages, each in a channel.

`analysis` is thought, `final` is the answer, and a message with a recipient (`to=functions.search`) is a call, which
ends the reply by `<|call|>`. Parsed here rather than by the package openai-harmony, which takes token ids of one
vocabulary, downloads that vocabulary, and raises on mistakes of a model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

from agentrl.chat.formats.parser import (
    Call,
    Found,
    ParsedCall,
    ParseFault,
    Parser,
    Reply,
    arguments_of,
    follows,
    read_json,
)
from agentrl.types.task import Message

CHANNEL, BODY, END, CALL, RETURN = "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>"


class HarmonyParser(Parser):
    """`<|channel|>commentary to=functions.search <|constrain|>json<|message|>{"query": "x"}`"""

    name = "harmony"
    native = re.compile(r"commentary channel: 'functions'")
    mark = re.compile(r"<\|channel\|>[^<]*?to=|to=[\w.]+\s*+<\|channel\|>")
    ends = (RETURN, CALL)

    def format(self, text: str, calls: Sequence[Call]) -> str:
        """Writes text before a call to the commentary channel, other text to the final one.

        Raises:
            ValueError: more than one call: a reply ends with its first.
        """
        if not calls:
            return f"{CHANNEL}final{BODY}{text}"
        if len(calls) > 1:
            raise ValueError("harmony cannot express two calls in one reply")
        ((name, arguments),) = calls
        preamble = f"{CHANNEL}commentary{BODY}{text}{END}<|start|>assistant" if text else ""
        shown = json.dumps(dict(arguments), ensure_ascii=False)
        return f"{preamble}{CHANNEL}commentary to=functions.{name} <|constrain|>json{BODY}{shown}"

    def thinking(self, thought: str, reply: str) -> str:
        """Writes a reply that begins with a message in the channel `analysis`."""
        said = reply if reply.startswith(CHANNEL) else f"{CHANNEL}final{BODY}{reply}"
        return f"{CHANNEL}analysis{BODY}{thought}{END}<|start|>assistant{said}"

    def parse(self, text: str, tools: Collection[str]) -> Reply:
        """Parses a reply. Never raises. Text outside of messages is read as in the final channel."""
        thought, said = _split(text)
        reply = super().parse(said, tools)
        if thought is None:
            return reply
        if not (reply.calls or reply.errors or reply.text or reply.answer is not None):
            why = f"the reply ends with your analysis: go on with {CHANNEL}final{BODY} or with a call"
            return replace(reply, thought=thought, errors=[ParseFault(thought[:120], why)])
        return replace(reply, thought=thought)

    def message(self, text: str) -> Message:
        """Returns a message for the template: channels become keys, because it refuses them in a content."""
        thought, said = _split(text)
        call = next((part for part in _parts(said) if part.to), None)
        if call is None:
            return {"role": "assistant", "content": said, **({"thinking": thought} if thought else {})}
        arguments: Any = said[call.at : call.end]
        with suppress(ValueError):
            arguments = arguments_of(arguments)
        function = {"name": call.to, "arguments": arguments}
        content = "\n".join(part for part in (thought, said[: call.start].strip()) if part)
        return {"role": "assistant", "content": content, "tool_calls": [{"type": "function", "function": function}]}

    def _find(self, text: str, tools: Collection[str]) -> Iterator[Found]:
        for part in _parts(text):
            if part.to or part.astray:
                yield Found(part.start, _past_end(text, part.end), self._read(part, text, tools))

    def _read(self, part: _Part, text: str, tools: Collection[str]) -> ParsedCall | ParseFault:
        written = text[part.start : part.end]
        if part.astray:
            header = text[part.start : part.at].strip()[:80]
            return self._fault(written, f"{header!r} does not say which tool is called", tools)
        try:
            value = read_json(text[part.at : part.end])
        except ValueError as error:
            return self._fault(written, f"the JSON is wrong: {error}", tools, part.to)
        try:
            return self._offered(ParsedCall(part.to, arguments_of(value)), written, tools)
        except ValueError as error:
            return self._fault(written, str(error), tools, part.to)

    def _leftover(self, prose: str, tools: Collection[str], acted: bool) -> ParseFault | None:
        if not acted and (stray := _STRAY.search(prose)) is not None:
            return self._fault(prose[stray.start() :], f"{stray[0]} stands outside of a message", tools)
        return None


class _Part(NamedTuple):
    """Message of a reply.

    Attributes:
        to: the called tool; "" for no call.
        astray: whether it is meant for a tool, but its header is malformed.
        start, at, end: start of its header, start of its body, end of its body.
    """

    channel: str
    to: str
    astray: bool
    start: int
    at: int
    end: int


def _parts(text: str) -> Iterator[_Part]:
    """Yields the messages in order. JSON in the body of a call may hold anything, marks included."""
    at = 0
    while (header := _HEADER.search(text, at)) is not None:
        before = _BEFORE.search(text[max(at, header.start() - 200) : header.start()])
        addressee, begun = (None, 0) if before is None else (before["to"], len(before[0]))
        to = (addressee or header["to"] or "").removeprefix("functions.")
        plain = header["channel"] in ("analysis", "final") or follows(text, header.end(), "{") is None
        end = None if plain and not to else _json_end(text, header.end())
        # It names a tool in the wrong place; or it is a JSON object, which cannot be a preamble.
        astray = not to and ("to=" in header[0] or "functions." in header[0] or end is not None)
        if end is None:
            found = _BODY_END.search(text, header.end())
            end = found.start() if found is not None else len(text)
        yield _Part(header["channel"], to, astray, header.start() - begun, header.end(), end)
        at = end


def _json_end(text: str, at: int) -> int | None:
    try:
        return int(read_json(text, at)[1])
    except ValueError:
        return None


def _past_end(text: str, at: int) -> int:
    """Returns the position behind the mark that ends a message, if any."""
    ended = _ENDED.match(text, at)
    return at if ended is None else ended.end()


def _split(text: str) -> tuple[str | None, str]:
    """Splits a reply into its thought (None if none) and the rest: text, and unparsed calls."""
    thoughts, said, at = [], "", 0
    for part in _parts(text):
        said += text[at : part.start]
        at = _past_end(text, part.end)
        if part.to or part.astray:
            said += text[part.start : at]
        elif part.channel == "analysis":
            thoughts.append(text[part.at : part.end].strip())
        else:
            said += text[part.at : part.end] + "\n"
    said += text[at:]
    return "\n".join(thoughts) if thoughts else None, said.strip()


# The recipient precedes or follows the channel.
_BEFORE = re.compile(r"(?:<\|start\|>assistant)?(?:\s?to=(?P<to>[^\s<]++))?\s?\Z")
_HEADER = re.compile(
    r"<\|channel\|>(?P<channel>[a-z]*+)(?:\s*+to=(?P<to>[^\s<]++))?[^<]*+(?:<\|constrain\|>[^<]*+)?<\|message\|>"
)
_BODY_END = re.compile(r"<\|(?:end|call|return|start|channel)\|>")
_ENDED = re.compile(r"\s*+<\|(?:end|call|return)\|>")
_STRAY = re.compile(r"<\|(?:channel|constrain|message)\|>")
