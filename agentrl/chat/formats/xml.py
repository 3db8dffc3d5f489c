"""Formats that put every argument into a tag of its own: Qwen3-Coder and Qwen3.5 (`xml`), Seed-OSS, GLM-4.5,
MiniMax-M2, DeepSeek V3.2. Strings stand as they are, everything else as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from agentrl.chat.formats.parser import Call, Found, ParsedCall, ParseFault, Parser, follows


class XmlParser(Parser):
    """`<function=name><parameter=x>value</parameter></function>`, in `<tool_call>` or bare.

    Attributes:
        wrapper: the tags around calls, which may be missing when they are read; "" if the format has none.
        together: whether one wrapper holds all calls of a reply.
        begin, end: of a call; `begin` has the group `name`.
        key: matches what stands before a value; the group `key`.
        value_end: of a value. Values may contain tags: it looks ahead to the next argument or the end of the call.
        written, argument: a call with {name} and {arguments}; an argument with {key} and {value}.
        shape: an argument, the end of a call, and what both stand in, for messages.
        padded: whether a value has lines of its own.
        breaking: what no value can contain.
        stray: matches a tag that may only stand in a call.
    """

    name = "xml"
    native = re.compile(r"<function=")
    mark = re.compile(r"<function=[^<>\n]*>")
    wrapper: ClassVar[tuple[str, str]] = ("<tool_call>", "</tool_call>")
    together: ClassVar[bool] = False
    begin: ClassVar[re.Pattern[str]] = re.compile(r"<function(?![\w-])(?P<name>[^<>\n]*)>")
    end: ClassVar[re.Pattern[str]] = re.compile(r"\s*</function>")
    key: ClassVar[re.Pattern[str]] = re.compile(r"\s*<parameter=(?P<key>[^<>\n]*)>")
    value_end: ClassVar[re.Pattern[str]] = re.compile(r"</parameter>(?=\s*(?:<parameter=[^<>\n]*>|</function>))")
    written: ClassVar[str] = "<function={name}>\n{arguments}</function>"
    argument: ClassVar[str] = "<parameter={key}>\n{value}\n</parameter>\n"
    shape: ClassVar[tuple[str, str, str]] = ("<parameter=...>", "</function>", "<function=...>")
    padded: ClassVar[bool] = True
    breaking: ClassVar[tuple[str, ...]] = ("</parameter>", "</function>", "<function")
    stray: ClassVar[re.Pattern[str]] = re.compile(r"</?(?:function|parameter)\b[^<>\n]*>", re.IGNORECASE)

    def format(self, text: str, calls: Sequence[Call]) -> str:
        """The layout of the models' own templates."""
        written = [self._written(name, arguments) for name, arguments in calls]
        if self.together and written:
            written = ["\n".join(written)]
        opening, closing = (f"{self.wrapper[0]}\n", f"\n{self.wrapper[1]}") if self.wrapper[0] else ("", "")
        return "\n".join(([text] if text else []) + [f"{opening}{call}{closing}" for call in written])

    def _written(self, name: str, arguments: Mapping[str, Any]) -> str:
        shown = [self._argument(name, key, value) for key, value in arguments.items()]
        return self.written.format(name=name, arguments="".join(shown))

    def _argument(self, name: str, key: str, value: Any) -> str:
        text = self._is_string(name, key)
        shown = value if text and isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        if any(tag in shown for tag in self.breaking):
            why = "it contains a tag of a call"
        elif text and not isinstance(value, str):
            why = f"{value!r} would read as text"
        else:
            return self.argument.format(key=key, value=shown, string=str(text).lower())
        raise ValueError(f"{self.name} cannot express the argument {key!r} of {name!r}: {why}")

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
        """The call that begins at `begin`, and where it ends."""
        name, at = begin["name"].strip(" =\n"), begin.end()
        following = self.begin.search(text, at)
        limit = following.start() if following is not None else len(text)
        arguments: dict[str, Any] = {}
        argument_form, end_form, call_form = self.shape
        why = None if name else "the name of the tool is missing"
        while why is None and (head := self.key.match(text, at, limit)) is not None:
            key, value_at = head["key"].strip(), head.end()
            value = self.value_end.search(text, value_at, limit)
            if value is None:
                why = f"{head[0].strip()[:80]} or {call_form} around it is never closed"
            elif not key:
                why = "the name of a parameter is missing"
            elif key in arguments:
                why = f"the parameter {key[:60]!r} is there twice"
            else:
                shown = text[value_at : value.start()]
                # The layout puts a line break on either side of a value.
                shown = shown.removeprefix("\n").removesuffix("\n") if self.padded else shown
                arguments[key] = self._typed(name, key, shown)
                at = value.end()
        end = self.end.match(text, at, limit)
        if why is None and end is not None:
            return self._offered(ParsedCall(name, arguments), text[begin.start() : end.end()], tools), end.end()
        if why is None:
            found = text[at : at + 200].strip()[:30]
            why = f"expected {argument_form} or {end_form}, found {found!r}" if found else f"{end_form} is missing"
        close = text.find(end_form, at, limit)
        stop = close + len(end_form) if close >= 0 else limit
        return self._fault(text[begin.start() : stop], why, tools, name), stop

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
    breaking = ("</arg_value>", "</tool_call>", "<tool_call>")
    stray = re.compile(r"</tool_call>|</?arg_(?:key|value)>")


class MiniMaxParser(XmlParser):
    """`<invoke name="..."><parameter name="x">value</parameter></invoke>` in `<minimax:tool_call>`: MiniMax-M2."""

    name = "minimax"
    native = mark = re.compile(r"<minimax:tool_call>")
    wrapper, together = ("<minimax:tool_call>", "</minimax:tool_call>"), True
    begin = re.compile(r'<invoke name="(?P<name>[^"<>\n]*)">')
    end = re.compile(r"\s*</invoke>")
    key = re.compile(r'\s*<parameter name="(?P<key>[^"<>\n]*)">')
    value_end = re.compile(r'</parameter>(?=\s*(?:<parameter name="[^"<>\n]*">|</invoke>))')
    written = '<invoke name="{name}">\n{arguments}</invoke>'
    argument = '<parameter name="{key}">{value}</parameter>\n'
    shape = ('<parameter name="...">', "</invoke>", '<invoke name="...">')
    padded = False
    breaking = ("</parameter>", "</invoke>", "<invoke")
    stray = re.compile(r"</?(?:invoke|parameter)\b[^<>\n]*>")


class DeepSeekV32Parser(XmlParser):
    """The same with DeepSeek's marks, and an attribute that tells strings from JSON: DeepSeek V3.2."""

    name = "deepseek-v3.2"
    native = mark = re.compile(r"<｜DSML｜(?:function_calls|invoke)")
    wrapper, together = ("<｜DSML｜function_calls>", "</｜DSML｜function_calls>"), True
    begin = re.compile(r'<｜DSML｜invoke name="(?P<name>[^"<>\n]*)">')
    end = re.compile(r"\s*</｜DSML｜invoke>")
    key = re.compile(r'\s*<｜DSML｜parameter name="(?P<key>[^"<>\n]*)"(?: string="(?:true|false)")?>')
    value_end = re.compile(r'</｜DSML｜parameter>(?=\s*(?:<｜DSML｜parameter name="|</｜DSML｜invoke>))')
    written = '<｜DSML｜invoke name="{name}">\n{arguments}</｜DSML｜invoke>'
    argument = '<｜DSML｜parameter name="{key}" string="{string}">{value}</｜DSML｜parameter>\n'
    shape = ('<｜DSML｜parameter name="..." string="true">', "</｜DSML｜invoke>", '<｜DSML｜invoke name="...">')
    padded = False
    breaking = ("</｜DSML｜parameter>", "</｜DSML｜invoke>", "<｜DSML｜invoke")
    stray = re.compile(r"</?｜DSML｜(?:invoke|parameter)\b[^<>\n]*>")
