"""Formats with a tag per argument: Qwen3-Coder and Qwen3.5 (`xml`), Seed-OSS, GLM-4.5, MiniMax-M2, DeepSeek V3.2.
Strings are written unchanged, everything else as JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, ClassVar

from agentrl.chat.formats.parser import Call, Found, ParsedCall, ParseFault, Parser, follows, same


class XmlParser(Parser):
    """`<function=name><parameter=x>value</parameter></function>`, in `<tool_call>` or bare.

    Attributes:
        wrapper: the tags around calls, which may be missing in a reply; "" if the format has none.
        together: whether one wrapper holds all calls of a reply.
        between: text that `format` writes between a wrapper and a call, and between calls of one wrapper.
        begin, end: of a call; `begin` has the group `name`.
        key: matches the text before a value; the group `key` and, if the format has one, `string`: "true" or "string"
            if the value is declared as text.
        value_end: of a value. Values may contain tags: it looks ahead to the next argument or the end of the call.
        written, argument: a call with {name}, {arguments} and {number} (of the calls in a reply, from 1); an argument
            with {key}, {value}, {string} (true or false) and {type} (its JSON type).
        shape: an argument, the end of a call, and the tag around both, for messages.
        padded: whether a value is on separate lines.
        stray: matches a tag that is valid only in a call.
    """

    name = "xml"
    native = re.compile(r"<function=")
    mark = re.compile(r"<function=[^<>\n]*>")
    wrapper: ClassVar[tuple[str, str]] = ("<tool_call>", "</tool_call>")
    together: ClassVar[bool] = False
    between: ClassVar[str] = "\n"
    begin: ClassVar[re.Pattern[str]] = re.compile(r"<function(?![\w-])(?P<name>[^<>\n]*)>")
    end: ClassVar[re.Pattern[str]] = re.compile(r"\s*</function>")
    key: ClassVar[re.Pattern[str]] = re.compile(r"\s*<parameter=(?P<key>[^<>\n]*)>")
    value_end: ClassVar[re.Pattern[str]] = re.compile(r"</parameter>(?=\s*(?:<parameter=[^<>\n]*>|</function>))")
    written: ClassVar[str] = "<function={name}>\n{arguments}</function>"
    argument: ClassVar[str] = "<parameter={key}>\n{value}\n</parameter>\n"
    shape: ClassVar[tuple[str, str, str]] = ("<parameter=...>", "</function>", "<function=...>")
    padded: ClassVar[bool] = True
    stray: ClassVar[re.Pattern[str]] = re.compile(r"</?(?:function|parameter)\b[^<>\n]*>", re.IGNORECASE)

    def format(self, text: str, calls: Sequence[Call]) -> str:
        """Writes the layout of the models' own templates.

        Raises:
            ValueError: the text would not be read as these calls.
        """
        return "\n".join(filter(None, [text, *self._blocks(calls)]))

    def _blocks(self, calls: Sequence[Call]) -> list[str]:
        """Writes the calls of a reply: one text for each, or one for all.

        Raises:
            ValueError: they would not be read as these calls.
        """
        written = [self._written(number, *call) for number, call in enumerate(calls, 1)]
        if self.together and written:
            written = [self.between.join(written)]
        opening, closing = (f"{self.wrapper[0]}{self.between}", f"{self.between}{self.wrapper[1]}")
        shown = [f"{opening}{call}{closing}" if self.wrapper[0] else call for call in written]
        read = [found.outcome for found in self._find("\n".join(shown), [name for name, _ in calls])]
        if len(read) != len(calls) or not all(map(_is_call, read, calls)):
            raise ValueError(f"{self.name} cannot express a call of {calls[0][0]!r}: it would be read as another")
        return shown

    def _written(self, number: int, name: str, arguments: Mapping[str, Any]) -> str:
        shown = [self._shown(name, key, value) for key, value in arguments.items()]
        return self.written.format(name=name, arguments="".join(shown), number=number)

    def _shown(self, name: str, key: str, value: Any) -> str:
        """Writes an argument, as text if that is read as the value, else as JSON."""
        for form in [*([value] if isinstance(value, str) else []), json.dumps(value, ensure_ascii=False)]:
            is_text = form is value
            declared = "string" if is_text else _TYPES[type(value)]
            shown = self.argument.format(key=key, value=form, string=str(is_text).lower(), type=declared)
            call = self.written.format(name=name, arguments=shown, number=1)
            read = [found.outcome for found in self._find(call, [name])]
            if len(read) == 1 and _is_call(read[0], (name, {key: value})):
                return shown
        raise ValueError(f"{self.name} cannot express the argument {key!r} of {name!r}: it would be read as another")

    def _find(self, text: str, tools: Collection[str]) -> Iterator[Found]:
        opening, closing = self.wrapper
        at = 0
        while (begin := self.begin.search(text, at)) is not None:
            before = text[at : begin.start()].rstrip()
            wrapped = bool(opening) and before.endswith(opening)
            start = at + len(before) - len(opening) if wrapped else begin.start()
            outcome, at = self._read(text, begin, tools)
            at = follows(text, at, closing) or at
            yield Found(start, at, outcome)

    def _read(self, text: str, begin: re.Match[str], tools: Collection[str]) -> tuple[ParsedCall | ParseFault, int]:
        """Reads the call at `begin`; returns it and its end. An unclosed argument takes the rest of the text: a call in
        it may be meant or quoted.
        """
        name, at = begin["name"].strip(" =\n"), begin.end()
        arguments: dict[str, Any] = {}
        argument_form, end_form, call_form = self.shape
        why = None if name else "the name of the tool is missing"
        while (head := self.key.match(text, at)) is not None:
            key = head["key"].strip()
            end, inner = self._value_end(text, head.end(), self._schema(name)[0].keys() - arguments.keys() - {key})
            if end is None:
                why = why or f"{head[0].strip()[:80]} or {call_form} around it is never closed"
                return self._fault(text[begin.start() :], why, tools, name), len(text)
            if inner:
                why = why or f"{head[0].strip()[:80]} is never closed: {inner[:80]} stands in it"
            elif not key:
                why = why or "the name of a parameter is missing"
            elif key in arguments:
                why = why or f"the parameter {key[:60]!r} is there twice"
            shown = text[head.end() : end.start()]
            # The layout puts a line break on either side of a value.
            shown = shown.removeprefix("\n").removesuffix("\n") if self.padded else shown
            told = head.groupdict().get("string")
            arguments[key] = self._typed(name, key, shown, is_text=None if told is None else told in ("true", "string"))
            at = end.end()
        closed = self.end.match(text, at)
        if why is None and closed is not None:
            return self._offered(ParsedCall(name, arguments), text[begin.start() : closed.end()], tools), closed.end()
        if why is None:
            found = text[at : at + 200].strip()[:30]
            why = f"expected {argument_form} or {end_form}, found {found!r}" if found else f"{end_form} is missing"
        stop = self._past_fault(text, at)
        return self._fault(text[begin.start() : stop], why, tools, name), stop

    def _value_end(self, text: str, at: int, others: Collection[str]) -> tuple[re.Match[str] | None, str]:
        """Returns the end of a value, and an argument that begins in it without an end: then it is unclosed itself.

        Calls inside the value are text.

        Args:
            others: names of arguments that may still be given.
        """
        depth, inner = 0, ""
        for found in _tokens(type(self)).finditer(text, at):
            match found.lastgroup:
                case "opens":
                    depth += 1
                case "closes":
                    depth = max(depth - 1, 0)
                case "ends" if not depth:
                    return found, inner
                case "shuts" if not depth:
                    inner = ""
                case "heads" if not depth and (key := self.key.match(found[0])) and key["key"].strip() in others:
                    inner = found[0]
        return None, ""

    def _past_fault(self, text: str, at: int) -> int:
        """Returns the position to continue at after a call that breaks off at `at`."""
        following = self.begin.search(text, at)
        limit = following.start() if following is not None else len(text)
        close = text.find(self.shape[1], at, limit)
        if close >= 0:
            return close + len(self.shape[1])
        return len(text) if self.stray.search(text, at, limit) else limit  # the rest may be inside an argument

    def _leftover(self, prose: str, tools: Collection[str], acted: bool) -> ParseFault | None:
        if (stray := self.stray.search(prose)) is not None:
            return self._fault(prose[stray.start() :], f"{stray[0][:60]!r} stands outside of a call", tools)
        if acted or not (found := [at for tag in self.wrapper if tag and (at := prose.find(tag)) >= 0]):
            return None
        return self._fault(prose[min(found) :], f"no {self.shape[2]} in {self.wrapper[0]}", tools)


class SeedParser(XmlParser):
    """The same in `<seed:tool_call>`: Seed-OSS."""

    name = "seed-oss"
    wrapper = ("<seed:tool_call>", "</seed:tool_call>")
    native = mark = re.compile(r"<seed:tool_call>")
    thought = ("<seed:think>", "</seed:think>")


class GlmParser(XmlParser):
    """`<tool_call>name` and `<arg_key>x</arg_key><arg_value>value</arg_value>` for each argument: GLM-4.5 to 4.7."""

    name = "glm-4.5"
    native = mark = re.compile(r"<arg_key>")
    wrapper = ("", "")
    begin = re.compile(r"<tool_call>\s*+(?P<name>[^<>\n{]*+)")
    end = re.compile(r"\s*</tool_call>")
    key = re.compile(r"\s*<arg_key>(?P<key>[^<>\n]*)</arg_key>\s*<arg_value>")
    value_end = re.compile(r"</arg_value>(?=\s*(?:<arg_key>|</tool_call>))")
    written = "<tool_call>{name}\n{arguments}</tool_call>"
    argument = "<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n"
    shape = ("<arg_key>...</arg_key><arg_value>...</arg_value>", "</tool_call>", "<tool_call>")
    padded = False
    stray = re.compile(r"</tool_call>|</?arg_(?:key|value)>")


class InvokeParser(XmlParser):
    """`<invoke name="..."><parameter name="x">value</parameter></invoke>`, with a prefix in each tag.

    Attributes:
        prefix: of the names of tags.
        declares: whether an argument has an attribute `string`, which separates texts from JSON.
    """

    prefix: ClassVar[str]
    declares: ClassVar[bool] = False
    padded = False

    def __init_subclass__(cls) -> None:
        own, declared = re.escape(cls.prefix), '(?: string="(?P<string>true|false)")?' if cls.declares else ""
        key = rf'<{own}parameter name="(?P<key>[^"<>\n]*)"{declared}>'
        following = rf'<{own}parameter name="|</{own}invoke>'
        cls.begin = re.compile(rf'<{own}invoke name="(?P<name>[^"<>\n]*)">')
        cls.end = re.compile(rf"\s*</{own}invoke>")
        cls.key = re.compile(rf"\s*{key}")
        cls.value_end = re.compile(rf"</{own}parameter>(?=\s*(?:{following}))")
        cls.stray = re.compile(rf"</?{own}(?:invoke|parameter)\b[^<>\n]*>")
        string = ' string="{string}"' if cls.declares else ""
        cls.written = f'<{cls.prefix}invoke name="{{name}}">\n{{arguments}}</{cls.prefix}invoke>'
        cls.argument = f'<{cls.prefix}parameter name="{{key}}"{string}>{{value}}</{cls.prefix}parameter>\n'
        shown = f'<{cls.prefix}parameter name="..."{string.format(string="true")}>'
        cls.shape = (shown, f"</{cls.prefix}invoke>", f'<{cls.prefix}invoke name="...">')


class MiniMaxParser(InvokeParser):
    """`<invoke name="..."><parameter name="x">value</parameter></invoke>` in `<minimax:tool_call>`: MiniMax-M2."""

    name, prefix = "minimax", ""
    native = mark = re.compile(r"<minimax:tool_call>")
    wrapper, together = ("<minimax:tool_call>", "</minimax:tool_call>"), True


class DeepSeekV32Parser(InvokeParser):
    """The same with DeepSeek's marks, and an attribute that separates strings from JSON: DeepSeek V3.2."""

    name, prefix, declares = "deepseek-v3.2", "｜DSML｜", True
    native = mark = re.compile(r"<｜DSML｜(?:function_calls|invoke)")
    wrapper, together = ("<｜DSML｜function_calls>", "</｜DSML｜function_calls>"), True


class DeepSeekV41Parser(InvokeParser):
    """The same with a space behind the mark, and another name of the block: DeepSeek V4.1."""

    name, prefix, declares = "deepseek-v4.1", "｜DSML｜ ", True
    native = mark = re.compile(r"<｜DSML｜ (?:calls|invoke)")
    wrapper, together = ("<｜DSML｜ calls>", "</｜DSML｜ calls>"), True


_TYPES = {str: "string", bool: "boolean", int: "number", float: "number", list: "array", dict: "object"} | {
    tuple: "array",
    type(None): "null",
}
"""JSON types of values."""


@cache
def _tokens(parser: type[XmlParser]) -> re.Pattern[str]:
    """Matches the relevant tags in a value: opening (if an argument or its end follows) and end of a call, end of the
    value, beginning of an argument, and the closing tag of one elsewhere.
    """

    def plain(pattern: re.Pattern[str]) -> str:
        return re.sub(r"\(\?P<\w+>", "(?:", pattern.pattern.removeprefix(r"\s*"))

    shut, _, _ = parser.value_end.pattern.partition("(?=")
    opens = rf"{plain(parser.begin)}\s*+(?={plain(parser.key)}|{plain(parser.end)})"
    kinds = {
        "opens": opens, "ends": plain(parser.value_end), "closes": plain(parser.end), "heads": plain(parser.key),
        "shuts": shut,
    }  # fmt: skip
    return re.compile("|".join(f"(?P<{kind}>{pattern})" for kind, pattern in kinds.items()))


def _is_call(outcome: ParsedCall | ParseFault, call: Call) -> bool:
    name, arguments = call
    return isinstance(outcome, ParsedCall) and outcome.name == name and same(outcome.arguments, dict(arguments))
