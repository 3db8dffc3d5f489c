"""Formats that write calls as JSON objects with the tool's name: Hermes and Qwen, Llama 3, Mistral, Phi-4, Granite,
Nemotron, Cohere. They differ in the marks around the objects, and in the names of the keys.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from agentrl.chat.formats.parser import Call, Found, ParsedCall, ParseFault, Parser, Reply, arguments_of, read_json


class JsonParser(Parser):
    """One JSON object, or a list of them, between two marks.

    Attributes:
        opening, closing: the marks. `closing` may be missing at the end of a reply, where sampling ended; "" if the
            format has none.
        many: whether they enclose a list.
        margin: text that `format` writes between a mark and the JSON.
        keys: of an object: the tool's name, its arguments, the call's id.
        near_miss: matches malformed marks.
    """

    opening: ClassVar[str]
    closing: ClassVar[str]
    many: ClassVar[bool] = True
    margin: ClassVar[str] = ""
    keys: ClassVar[tuple[str, str, str]] = ("name", "arguments", "id")
    near_miss: ClassVar[re.Pattern[str] | None] = None

    def format(self, text: str, calls: Sequence[Call]) -> str:
        """Writes the layout of the models' own templates."""
        name_key, arguments_key, _ = self.keys
        objects = [{name_key: name, arguments_key: dict(arguments)} for name, arguments in calls]
        groups: list[Any] = [objects] if self.many and objects else objects
        written = [f"{self.opening}{self.margin}{_json(group)}{self.margin}{self.closing}" for group in groups]
        return "\n".join(([text] if text else []) + written)

    def _find(self, text: str, tools: Collection[str]) -> Iterator[Found]:
        at = 0
        while (start := text.find(self.opening, at)) >= 0:
            value, end, why = None, start + len(self.opening), None
            try:
                value, end = read_json(text, end)
            except ValueError as error:
                why = f"the JSON is wrong: {error}"
            else:
                why = self._not_closed(text[end:].lstrip())
            at = self._end_of_call(text, end) if self.closing else end if why is None else len(text)
            written = text[start:at]
            outcomes = [self._fault(written, why, tools)] if why else self._read_all(value, written, tools)
            for number, outcome in enumerate(outcomes):
                yield Found(at if number else start, at, outcome)

    def _not_closed(self, rest: str) -> str | None:
        """Describes the fault in the text after the JSON."""
        if not self.closing or not rest or rest.startswith(self.closing):
            return None
        if rest.startswith(self.opening):
            return f"{self.closing} is missing"
        return f"{self.closing} must follow the JSON, found {rest[:20]!r} (one call per {self.opening})"

    def _end_of_call(self, text: str, at: int) -> int:
        """Returns the position to continue at: after the closing mark or, if that is missing, before the next opening
        one.
        """
        closing = text.find(self.closing, at)
        if closing < 0:
            return following if (following := text.find(self.opening, at)) >= 0 else len(text)
        following = text.find(self.opening, at, closing + len(self.opening))  # far ahead it is not looked for
        return following if following >= 0 else closing + len(self.closing)

    def _read_all(self, value: Any, written: str, tools: Collection[str]) -> list[ParsedCall | ParseFault]:
        if not self.many or not isinstance(value, list):
            return [self._read(value, written, tools)]
        if not value:
            return [self._fault(written, "the list of calls is empty", tools)]
        return [self._read(each, written, tools) for each in value]

    def _read(self, value: Any, written: str, tools: Collection[str]) -> ParsedCall | ParseFault:
        name_key, arguments_key, id_key = self.keys
        if isinstance(value, dict):
            value = {key: item for key, item in value.items() if key != "type" or item != "function"}
        why = call_fault(value, self.keys)
        if why is not None:
            name = value.get(name_key) if isinstance(value, dict) else None
            return self._fault(written, why, tools, name if isinstance(name, str) else None)
        arguments, id = arguments_of(value.get(arguments_key, {})), value.get(id_key)
        return self._offered(ParsedCall(value[name_key], arguments, None if id is None else str(id)), written, tools)

    def _leftover(self, prose: str, tools: Collection[str], acted: bool) -> ParseFault | None:
        if self.near_miss is not None and (near := self.near_miss.search(prose)) is not None:
            why = f"found {near[0]!r} where {self.opening}...{self.closing} is needed"
            return self._fault(prose[near.start() :], why, tools)
        if acted:
            return None
        if self.closing and (at := prose.find(self.closing)) >= 0:
            return self._fault(prose[at:], f"there is no {self.opening} before {self.closing}", tools)
        place = f"between {self.opening} and {self.closing}" if self.closing else f"after {self.opening}"
        return bare_json_fault(self, prose, tools, f"the JSON is not {place}")


class HermesParser(JsonParser):
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`: Hermes, Qwen2.5, Qwen3, SmolLM3, Granite 4."""

    name = "hermes"
    opening, closing, many, margin = "<tool_call>", "</tool_call>", False, "\n"
    native = re.compile(r"""<tool_call>\s*\{\s*["']""")
    mark = re.compile(r"<tool_call>\s*\{")
    near_miss = re.compile(r"</?\s*\|?tool[ _-]?calls?\|?\s*/?>", re.IGNORECASE)

    def instructions(self, tools: Sequence[Mapping[str, Any]]) -> str:
        """Returns the wording of Qwen's templates, on which these models were trained."""
        shown = "\n".join(_json(tool) for tool in tools)
        return (
            "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
            "You are provided with function signatures within <tools></tools> XML tags:\n"
            f"<tools>\n{shown}\n</tools>\n\n"
            "For each function call, return a json object with function name and arguments within "
            f"{self.opening}{self.closing} XML tags:\n"
            f'{self.opening}\n{{"name": <function-name>, "arguments": <args-json-object>}}\n{self.closing}'
        )


class Phi4Parser(JsonParser):
    """`<|tool_call|>[{"name": ..., "arguments": {...}}]<|/tool_call|>`: Phi-4-mini."""

    name = "phi-4"
    opening, closing = "<|tool_call|>", "<|/tool_call|>"
    native = re.compile(r"<\|/tool_call\|>")
    mark = re.compile(r"<\|/tool_call\|>")


class GraniteParser(JsonParser):
    """`<|tool_call|>[{"name": ..., "arguments": {...}}]`, without a closing mark: Granite 3."""

    name = "granite"
    opening, closing = "<|tool_call|>", ""
    native = re.compile(r"<\|tool_call\|>(?!.*<\|/tool_call\|>)", re.DOTALL)
    mark = re.compile(r"<\|tool_call\|>")


class NemotronParser(JsonParser):
    """`<TOOLCALL>[{"name": ..., "arguments": {...}}]</TOOLCALL>`: Nemotron Nano 2 and Llama-Nemotron (3 writes xml)."""

    name = "nemotron"
    opening, closing = "<TOOLCALL>", "</TOOLCALL>"
    native = mark = re.compile(r"<TOOLCALL>")


class CohereParser(JsonParser):
    """`<|START_ACTION|>[{"tool_call_id": ..., "tool_name": ..., "parameters": {...}}]<|END_ACTION|>`: Command A."""

    name = "cohere"
    opening, closing = "<|START_ACTION|>", "<|END_ACTION|>"
    keys = ("tool_name", "parameters", "tool_call_id")
    native = mark = re.compile(r"<\|START_ACTION\|>")
    thought = ("<|START_THINKING|>", "<|END_THINKING|>")
    _said = re.compile(r"<\|(?:START|END)_(?:RESPONSE|TEXT)\|>")

    def parse(self, text: str, tools: Collection[str]) -> Reply:
        """Parses a reply, without the marks around text for the user. Never raises."""
        reply = super().parse(text, tools)
        return replace(reply, text=self._said.sub("", reply.text).strip())


class ApertusParser(JsonParser):
    """`<|tools_prefix|>[{"NAME": {...}}]`, and `<|tools_suffix|>` ends the reply: Apertus."""

    name = "apertus"
    opening, closing = "<|tools_prefix|>", "<|tools_suffix|>"
    native = re.compile(r"Tool Capabilities:\n")
    mark = re.compile(r"<\|tools_prefix\|>")
    thought = ("<|inner_prefix|>", "<|inner_suffix|>")

    def format(self, text: str, calls: Sequence[Call]) -> str:
        """Writes a reply without the token that ends it."""
        called = f"{self.opening}{_json([{name: dict(arguments)} for name, arguments in calls])}" if calls else ""
        return "\n".join(filter(None, [text, called]))

    def _read(self, value: Any, written: str, tools: Collection[str]) -> ParsedCall | ParseFault:
        if not isinstance(value, dict) or len(value) != 1:
            return self._fault(written, 'a call is an object of one key, {"NAME": {...}}', tools)
        ((name, arguments),) = value.items()
        return super()._read({"name": name, "arguments": arguments}, written, tools)


class MistralV3Parser(JsonParser):
    """`[TOOL_CALLS][{"name": ..., "arguments": {...}, "id": ...}]`: Mistral's tokenizers v3 to v7."""

    name = "mistral-v3"
    opening, closing = "[TOOL_CALLS]", ""
    mark = re.compile(r"\[TOOL_CALLS\]\s*[\[{]")


class JsonFenceParser(JsonParser):
    """A block of JSON with `{"name": ..., "arguments": {...}}`: Qwen2.5-Coder. A block of other JSON is text."""

    name = "json-fence"
    opening, closing, many, margin = "```json", "```", False, "\n"
    _opened = re.compile(r"^[ \t]*+```[ \t]*+(?:json)?[ \t]*+\n\s*+(?=\{)", re.MULTILINE | re.IGNORECASE)
    _begun = re.compile(r'\{\s*+"(?:name|arguments)"\s*+:')

    def _find(self, text: str, tools: Collection[str]) -> Iterator[Found]:
        at = 0
        while (begin := self._opened.search(text, at)) is not None:
            value, end, why = None, begin.end(), None
            try:
                value, end = read_json(text, end)
            except ValueError as error:
                why = f"the JSON is wrong: {error}" if self._begun.match(text, end) else None
            else:
                why = self._not_closed(text[end:].lstrip()) if _named(value) else None
            at = self._end_of_call(text, end)
            written = text[begin.start() : at]
            if why is not None:
                yield Found(begin.start(), at, self._fault(written, why, tools))
            elif _named(value):
                yield Found(begin.start(), at, self._read(value, written, tools))

    def _leftover(self, prose: str, tools: Collection[str], acted: bool) -> ParseFault | None:
        return None if acted else bare_json_fault(self, prose, tools, f"the JSON is not in a {self.opening} block")


class Llama3Parser(JsonParser):
    """`{"name": ..., "parameters": {...}}` on a separate line, after `<|python_tag|>` or bare: Llama 3.1 to 3.3.

    Several calls are on separate lines, or separated by `;`.
    """

    name = "llama3"
    opening = closing = ""
    many = False
    keys = ("name", "parameters", "id")
    native = re.compile(r'\{"name": function name, "parameters":')
    _key = re.compile(r'\{\s*+"(?:name|type|parameters|arguments|id)"\s*+:')
    _begin = re.compile(rf"<\|python_tag\|>\s*+(?=\{{)|^[ \t]*+(?={_key.pattern})", re.MULTILINE)
    _separator = re.compile(r"[ \t]*;?[ \t]*")

    @classmethod
    def resembles(cls, text: str, tools: Collection[str]) -> bool:
        """Returns True if the reply is only the JSON of a call, or holds the tag."""
        return "<|python_tag|>" in text or _is_call(text) is not None

    def _find(self, text: str, tools: Collection[str]) -> Iterator[Found]:
        at = 0
        while (begin := self._begin.search(text, at)) is not None:
            start, at = begin.start(), begin.end()
            tagged = "<" in begin[0]
            while text.startswith("{", at):
                try:
                    value, end = read_json(text, at)
                except ValueError as error:  # the end of broken JSON is unknown
                    yield Found(start, len(text), self._fault(text[start:], f"the JSON is wrong: {error}", tools))
                    return
                if "arguments" in value and "parameters" not in value:
                    value["parameters"] = value.pop("arguments")
                if not tagged and not {"name", "parameters"} <= value.keys():
                    at = end  # JSON in the text: an answer may hold some
                    break
                outcome, at = self._read(value, text[at:end], tools), _past(self._separator, text, end)
                yield Found(start, at, outcome)
                start = at

    def _leftover(self, prose: str, tools: Collection[str], acted: bool) -> ParseFault | None:
        if (at := prose.find("<|python_tag|>")) >= 0:
            return self._fault(prose[at:], "no JSON follows <|python_tag|>", tools)
        return None


def call_fault(value: Any, keys: tuple[str, str, str] = HermesParser.keys) -> str | None:
    """Describes the fault in a call's JSON value; None if it is valid. Arguments are an object, or its JSON as a text.

    Args:
        keys: of the tool's name, its arguments, the call's id.
    """
    name, arguments, call_id = keys
    if not isinstance(value, dict):
        return f"it must be a JSON object, found {_kind(value)}"
    if name not in value:
        return f'the key "{name}" is missing'
    if not isinstance(value[name], str) or not value[name]:
        return f'"{name}" must be the name of a tool, found {_kind(value[name])}'
    if unexpected := [key for key in value if key not in keys]:
        return f'unexpected key {unexpected[0][:60]!r}: the arguments belong into "{arguments}"'
    try:
        arguments_of(value.get(arguments, {}))
    except ValueError:
        return f'"{arguments}" must be a JSON object, found {_kind(value[arguments])}'
    if not isinstance(value.get(call_id), str | int | None):
        return f'"{call_id}" must be a string, found {_kind(value[call_id])}'
    return None


def bare_json_fault(parser: Parser, prose: str, tools: Collection[str], why: str) -> ParseFault | None:
    """Returns a fault if the whole prose is a call's JSON without its marks: models forget them, and it is not an
    answer.
    """
    value = _is_call(prose)
    if value is None:
        return None
    return parser._fault(prose, why, tools, value["name"] if isinstance(value["name"], str) else None)


def _past(pattern: re.Pattern[str], text: str, at: int) -> int:
    """Returns the end of a match at `at`; `at` if none."""
    return at if (found := pattern.match(text, at)) is None else found.end()


def _is_call(text: str) -> dict[str, Any] | None:
    """Returns the JSON object of a call, if the text is only that."""
    try:
        value = read_json(text)
    except ValueError:
        return None
    return value if _named(value) else None


def _named(value: Any) -> bool:
    """Returns True if a JSON value has the keys of a call."""
    return isinstance(value, dict) and "name" in value and ("arguments" in value or "parameters" in value)


def _kind(value: Any) -> str:
    kinds = {bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "a list", dict: "an object"}
    return "null" if value is None else kinds[type(value)] if value != "" else "an empty string"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
