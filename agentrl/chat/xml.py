"""The XML-like format (Qwen3-Coder and relatives): `<function=name>` with a `<parameter=...>` for each argument."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from agentrl.chat.parser import Call, Found, ParsedCall, ParseFault, Parser, signature_lines

_OPEN = re.compile(r"<function(?![\w-])([^<>\n]*)>")
_END = re.compile(r"\s*</function>")
_WRAPPER_END = re.compile(r"\s*</tool_call>")
_PARAMETER = re.compile(r"\s*<parameter=([^<>\n]*)>")
# Values may contain tags: a value ends at a closing tag that is followed by the next parameter or the end of the call.
_VALUE_END = re.compile(r"</parameter>(?=\s*(?:<parameter=[^<>\n]*>|</function>))")
_WRAPPER = re.compile(r"</?tool_call>\s*")
_STRAY = re.compile(r"</?(?:function|parameter)\b[^<>\n]*>", re.IGNORECASE)


class XmlParser(Parser):
    """`<function=name><parameter=x>value</parameter></function>`, in `<tool_call>` or bare."""

    name = "xml"
    native = re.compile(r"<function=")

    def format(self, text: str, calls: Sequence[Call]) -> str:
        """Qwen3-Coder's layout. Strings stand as they are, everything else as JSON."""
        return "\n".join(([text] if text else []) + [self._written(name, arguments) for name, arguments in calls])

    def _written(self, name: str, arguments: Mapping[str, Any]) -> str:
        lines = ["<tool_call>", f"<function={name}>"]
        for key, value in arguments.items():
            text = self._is_string(name, key)
            shown = value if text and isinstance(value, str) else _json(value)
            if "</parameter>" in shown or "</function>" in shown or "<function" in shown:
                raise ValueError(f"xml cannot express the argument {key!r} of {name!r}: it contains a tag of a call")
            if text and not isinstance(value, str):
                raise ValueError(f"xml cannot express the argument {key!r} of {name!r}: {value!r} would read as text")
            lines += [f"<parameter={key}>", shown, "</parameter>"]
        return "\n".join([*lines, "</function>", "</tool_call>"])

    def instructions(self, tools: Sequence[Mapping[str, Any]]) -> str:
        """Signatures, and an example of the first tool."""
        form = self.example(tools[0]["function"]["name"])
        return f"You can call these tools:\n{signature_lines(tools)}\n\nTo call one, write for example:\n{form}"

    def _find(self, text: str, tools: Collection[str]) -> Iterator[Found]:
        at = 0
        while (opening := _OPEN.search(text, at)) is not None:
            wrapped = re.search(r"<tool_call>\s*\Z", text[at : opening.start()])
            start = at + wrapped.start() if wrapped else opening.start()
            outcome, at = self._read(text, opening, tools)
            if (closing := _WRAPPER_END.match(text, at)) is not None:
                at = closing.end()
            yield Found(start, at, outcome)

    def _read(self, text: str, opening: re.Match[str], tools: Collection[str]) -> tuple[ParsedCall | ParseFault, int]:
        """The call that begins at `opening`, and where it ends."""
        name, at = opening[1].strip(" ="), opening.end()
        following = _OPEN.search(text, at)
        limit = following.start() if following is not None else len(text)
        arguments: dict[str, Any] = {}
        why = None if name else "the name of the tool is missing"
        while why is None and (parameter := _PARAMETER.match(text, at, limit)) is not None:
            key, begin = parameter[1].strip(), parameter.end()
            value = _VALUE_END.search(text, begin, limit)
            if value is None:
                why = f"<parameter={key[:60]}> or the function after it is never closed"
            elif not key:
                why = "the name of a parameter is missing"
            elif key in arguments:
                why = f"the parameter {key[:60]!r} is there twice"
            else:
                arguments[key] = self._typed(name, key, _unwrapped(text[begin : value.start()]))
                at = value.end()
        end = _END.match(text, at, limit)
        if why is None and end is not None:
            return self._offered(ParsedCall(name, arguments), text[opening.start() : end.end()], tools), end.end()
        if why is None:
            found = text[at : at + 200].strip()[:30]
            why = f"expected <parameter=...> or </function>, found {found!r}" if found else "</function> is missing"
        close = text.find("</function>", at, limit)
        stop = close + len("</function>") if close >= 0 else limit
        return self._fault(text[opening.start() : stop], why, tools, name), stop

    def _leftover(self, prose: str, tools: Collection[str], acted: bool) -> ParseFault | None:
        if (stray := _STRAY.search(prose)) is not None:
            return self._fault(prose[stray.start() :], f"{stray[0][:60]!r} stands outside of a call", tools)
        if not acted and (stray := _WRAPPER.search(prose)) is not None:
            return self._fault(prose[stray.start() :], "no <function=...> in <tool_call>", tools)
        return None


def _unwrapped(value: str) -> str:
    """The value without the one line break on either side that the layout adds."""
    return value.removeprefix("\n").removesuffix("\n")


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
