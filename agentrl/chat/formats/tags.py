"""Tags (Search-R1 and relatives): the tag is the tool, its content the argument. The shortest format."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from agentrl.chat.formats.parser import (
    MAX_HINTS,
    Call,
    Found,
    ParsedCall,
    ParseFault,
    Parser,
    read_json,
    same,
    signature_lines,
)

_TAG = re.compile(r"<\s?(/?)\s?([A-Za-z_][\w.-]*+)[^<>]*+>")


class TagsParser(Parser):
    """`<search>query</search>`, `<look/>`, or a JSON object of several arguments in the tag."""

    name = "tags"

    def format(self, text: str, calls: Sequence[Call]) -> str:
        """Writes the bare argument if it is read back unchanged, otherwise a JSON object."""
        return "\n".join(([text] if text else []) + [self._written(name, arguments) for name, arguments in calls])

    def _written(self, name: str, arguments: Mapping[str, Any]) -> str:
        if not arguments:
            return f"<{name}/>"
        return f"<{name}>{self._bare(name, arguments) or _json(arguments)}</{name}>"

    def _bare(self, name: str, arguments: Mapping[str, Any]) -> str | None:
        main = self._main_argument(name)
        if main is None or set(arguments) != {main}:
            return None
        value = arguments[main]
        shown = value if isinstance(value, str) else _json(value)
        plain = shown == shown.strip() and not shown.startswith("{") and "<" not in shown
        return shown if plain and same(self._typed(name, main, shown), value) else None

    def instructions(self, tools: Sequence[Mapping[str, Any]]) -> str:
        """Returns signatures, and an example of every tool."""
        forms = "\n".join(self.example(tool["function"]["name"]) for tool in tools)
        return f"You can call these tools:\n{signature_lines(tools)}\n\nTo call one, write:\n{forms}"

    def stops(self) -> tuple[str, ...]:
        """Returns the closing tags of all tools: a model that continued would invent the result."""
        return tuple(f"</{name}>" for name in self.functions)

    def completed(self, text: str) -> str:
        """Returns the reply with the closing tag of the tool whose tag is left open."""
        last = max(self.functions, key=lambda name: text.rfind(f"<{name}>"), default="")
        left_open = text.rfind(f"<{last}>") > text.rfind(f"</{last}>")
        return f"{text}</{last}>" if last and left_open else text

    @classmethod
    def resembles(cls, text: str, tools: Collection[str]) -> bool:
        """Returns True if a tool's tag is opened and closed."""
        return any((at := text.find(f"<{name}>")) >= 0 and f"</{name}>" in text[at:] for name in tools)

    def _find(self, text: str, tools: Collection[str]) -> Iterator[Found]:
        if not tools or "<" not in text:
            return
        names = "|".join(re.escape(name) for name in sorted(tools, key=len, reverse=True))
        opening = re.compile(rf"<({names})(?![\w.-])([^<>]*?)(/?)>")
        at = 0
        while (tag := opening.search(text, at)) is not None:
            name, attributes = tag[1], tag[2].strip()
            close = -1 if tag[3] else text.find(f"</{name}>", tag.end())
            following = opening.search(text, tag.end(), close if close >= 0 else len(text))
            if attributes:
                at = close + len(f"</{name}>") if close >= 0 else tag.end()
                outcome: ParsedCall | ParseFault = self._fault(
                    text[tag.start() : at], f"<{name}> takes no attributes: {attributes[:60]!r}", tools, name
                )
            elif tag[3]:
                at = tag.end()
                outcome = ParsedCall(name, {})
            elif close < 0:
                at = following.start() if following else len(text)
                outcome = self._fault(text[tag.start() : at], f"</{name}> is missing", tools, name)
            elif following is not None:
                at = close + len(f"</{name}>")
                outcome = self._fault(text[tag.start() : at], f"<{following[1]}> stands inside <{name}>", tools, name)
            else:
                at = close + len(f"</{name}>")
                outcome = self._read(name, text[tag.end() : close].strip(), text[tag.start() : at], tools)
            yield Found(tag.start(), at, outcome)

    def _read(self, name: str, content: str, written: str, tools: Collection[str]) -> ParsedCall | ParseFault:
        """Reads the call from the content of its tags."""
        if not content:
            return ParsedCall(name, {})
        properties, main = self._schema(name)[0], self._main_argument(name)
        why = "the arguments must be a JSON object"
        if content.startswith("{"):
            try:
                value = read_json(content)
            except ValueError as error:
                why = f"the JSON is wrong: {error}"
            else:
                if main is None or set(value) <= set(properties):
                    return ParsedCall(name, value)
        if main is not None:
            return ParsedCall(name, {main: self._typed(name, main, content)})
        if name in self.functions and not properties:
            why = f"{name!r} takes no argument"
        return self._fault(written, why, tools, name)

    def _leftover(self, prose: str, tools: Collection[str], acted: bool) -> ParseFault | None:
        opened: dict[str, int] = {}  # position of the first tag of this name
        compared: set[str] = set()
        for tag in _TAG.finditer(prose):
            name, start = tag[2], tag.start()
            if name not in compared and len(compared) < MAX_HINTS:
                compared.add(name)
                if near := difflib.get_close_matches(name.lower()[:100], tools, 1, 0.75):
                    return self._fault(prose[start:], f"found {tag[0][:60]!r}", tools, near[0])
            if not tag[1]:
                opened.setdefault(name, start)
            elif name in opened and not acted and name not in ("think", "answer"):
                return self._unknown(name, prose[opened[name] : tag.end()], tools)
        return None


def _json(value: Any) -> str:
    # "<" only as an escape, so that a tag cannot begin inside the arguments.
    return json.dumps(value, ensure_ascii=False).replace("<", "\\u003c")
