"""Formats that write the tool's name in front of its JSON arguments: Mistral, DeepSeek V3 and V3.1, Kimi K2."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from agentrl.chat.formats.parser import Call, Found, ParsedCall, ParseFault, Parser, arguments_of, follows, read_json


class NamedParser(Parser):
    """A head with the name, a JSON object (or the format's equivalent), and the end of the call.

    Attributes:
        sign: the text that `head` begins with.
        head: matches the beginning of a call; the groups `name` and, if the format has one, `id`.
        tail: end of a call. It may be missing at the end of a reply, where sampling ended; "" if the format has none.
        written: template of a call: {name} and {arguments} are filled in; {index} counts the calls of a reply.
        section: marks around all calls of a reply.
    """

    sign: ClassVar[str]
    head: ClassVar[re.Pattern[str]]
    tail: ClassVar[str] = ""
    written: ClassVar[str]
    section: ClassVar[tuple[str, str]] = ("", "")

    def format(self, text: str, calls: Sequence[Call]) -> str:
        """Writes the layout of the models' own templates."""
        if not calls:
            return text
        shown = "".join(
            self.written.format(name=name, arguments=self._written(arguments), index=index)
            for index, (name, arguments) in enumerate(calls)
        )
        return f"{text}{self.section[0]}{shown}{self.section[1]}"

    def _written(self, arguments: Mapping[str, Any]) -> str:
        return json.dumps(dict(arguments), ensure_ascii=False)

    def _value(self, text: str, at: int) -> tuple[Any, int]:
        """Reads the arguments at `at`; returns them and their end.

        Raises:
            ValueError: describes the fault.
        """
        try:
            value, end = read_json(text, at)
        except ValueError as error:
            raise ValueError(f"the JSON is wrong: {error}") from None
        return arguments_of(value), end

    def _find(self, text: str, tools: Collection[str]) -> Iterator[Found]:
        at = 0
        while (head := self.head.search(text, at)) is not None:
            start = self._section_before(text, at, head.start())
            name = head["name"].strip()
            arguments, at, why = self._arguments(text, head.end())
            at = follows(text, at, self.section[1]) or at
            if not name:
                why = "the name of the tool is missing"
            call = ParsedCall(name, arguments, head.groupdict().get("id"))
            written = text[start:at]
            yield Found(
                start, at, self._fault(written, why, tools, name) if why else self._offered(call, written, tools)
            )

    def _section_before(self, text: str, at: int, start: int) -> int:
        """Returns the start of the call: with the mark of its section, if that directly precedes it."""
        opening = self.section[0]
        before = text[at:start].rstrip()
        return at + len(before) - len(opening) if opening and before.endswith(opening) else start

    def _arguments(self, text: str, at: int) -> tuple[dict[str, Any], int, str | None]:
        """Returns the arguments of a call, its end, and its fault."""
        try:
            value, end = self._value(text, at)
        except ValueError as error:
            following = self.head.search(text, at)
            limit = following.start() if following is not None else len(text)
            close = text.find(self.tail, at, limit) if self.tail else -1
            return {}, close + len(self.tail) if close >= 0 else limit, str(error)
        closed = follows(text, end, self.tail)
        if closed is None and self.tail and (rest := text[end : end + 200].strip()):
            return {}, end, f"{self.tail} must follow the arguments, found {rest[:20]!r}"
        return value, closed or end, None

    def _leftover(self, prose: str, tools: Collection[str], acted: bool) -> ParseFault | None:
        for sign in (self.sign, *self.section):
            if sign and (at := prose.find(sign)) >= 0:
                return self._fault(prose[at:], f"{sign} stands outside of a call", tools)
        return None


class MistralParser(NamedParser):
    """`[TOOL_CALLS]name[ARGS]{...}`: Mistral's tokenizers from v11 on."""

    name, sign = "mistral", "[TOOL_CALLS]"
    head = re.compile(r"\[TOOL_CALLS\]\s*+(?P<name>[\w.-]*+)(?:\[CALL_ID\](?P<id>\w++))?\[ARGS\]")
    written = "[TOOL_CALLS]{name}[ARGS]{arguments}"
    mark = re.compile(r"\[TOOL_CALLS\]\s*+[\w.-]*+(?:\[CALL_ID\]|\[ARGS\])")
    thought = ("[THINK]", "[/THINK]")


class DeepSeekV3Parser(NamedParser):
    """`function<｜tool▁sep｜>name`, and the arguments in a block of JSON: DeepSeek V3 and R1."""

    name, sign = "deepseek-v3", "<｜tool▁call▁begin｜>"
    head = re.compile(
        r"<｜tool▁call▁begin｜>\s*+(?:function)?\s*+<｜tool▁sep｜>(?P<name>[^\n<`{]*+)\s*+(?:```(?:json)?\s*+)?"
    )
    tail = "```<｜tool▁call▁end｜>"
    written = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```<｜tool▁call▁end｜>"
    section = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
    mark = re.compile(r"<｜tool▁call▁begin｜>\s*+function\s*+<｜tool▁sep｜>")


class DeepSeekV31Parser(NamedParser):
    """`<｜tool▁call▁begin｜>name<｜tool▁sep｜>{...}<｜tool▁call▁end｜>`: DeepSeek V3.1."""

    name, sign = "deepseek-v3.1", "<｜tool▁call▁begin｜>"
    head = re.compile(r"<｜tool▁call▁begin｜>(?P<name>[^\n<{]*+)<｜tool▁sep｜>")
    tail = "<｜tool▁call▁end｜>"
    written = "<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{arguments}<｜tool▁call▁end｜>"
    section = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
    native = re.compile(r"<｜tool▁call▁begin｜>tool_call_name")
    mark = re.compile(r"<｜tool▁call▁begin｜>")


class KimiK2Parser(NamedParser):
    """`<|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{...}<|tool_call_end|>`: Kimi K2."""

    name, sign = "kimi-k2", "<|tool_call_begin|>"
    head = re.compile(
        r"<\|tool_call_begin\|>\s*+(?P<id>(?:functions\.)?(?P<name>[^\s<:]*+)(?::\d++)?)\s*+<\|tool_call_argument_begin\|>"
    )
    tail = "<|tool_call_end|>"
    written = "<|tool_call_begin|>functions.{name}:{index}<|tool_call_argument_begin|>{arguments}<|tool_call_end|>"
    section = ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>")
    mark = re.compile(r"<\|tool_call_begin\|>")
