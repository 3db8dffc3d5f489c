"""Fenced blocks, a format for every model: a block of code runs, `tool_call` holds JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from agentrl.chat.formats.json_calls import bare_json_fault, call_fault
from agentrl.chat.formats.parser import (
    Call,
    Found,
    ParsedCall,
    ParseFault,
    Parser,
    arguments_of,
    read_json,
    signature_lines,
)

JSON_BLOCK = "tool_call"
LANGUAGES = {"py": "python", "python3": "python", "ipython": "python", "bash": "shell", "sh": "shell", "zsh": "shell"}
"""Tools by language of blocks, unless a tool has the language's own name."""

_FENCE = re.compile(r"^[ \t]*+(`{3,}+)[ \t]*+([\w.+-]*+)[ \t]*+$", re.MULTILINE)
_FULL = re.compile(r"^[ \t]*+`{3,}+[ \t]*+([\w.+-]++)[ \t]++[^`\s][^`\n]*+$", re.MULTILINE)
_NEAR_MISS = re.compile(r"```[ \t]*+tool[ _-]?calls?\b", re.IGNORECASE)


class _Block(NamedTuple):
    start: int
    end: int
    language: str
    body: str | None  # None: the block is never closed


class FencedParser(Parser):
    """Fenced blocks: if the language names a tool, the block is its only string argument; else the block is JSON."""

    name = "fenced"
    mark = re.compile(r"^[ \t]*+```+tool_call[ \t]*+$", re.MULTILINE)

    def format(self, text: str, calls: Sequence[Call]) -> str:
        """Writes a block per call; the fence is longer than any in it."""
        return "\n".join(([text] if text else []) + [self._written(name, arguments) for name, arguments in calls])

    def _written(self, name: str, arguments: Mapping[str, Any]) -> str:
        language, body = JSON_BLOCK, json.dumps({"name": name, "arguments": dict(arguments)}, ensure_ascii=False)
        main = self._main_argument(name)
        if main is not None and self._takes_text(name) and list(map(type, arguments.values())) == [str]:
            language, body = name, arguments.get(main, body)
        longest = max((len(ticks) for ticks in re.findall(r"`{3,}", body)), default=2)
        fence = "`" * (longest + 1)
        return f"{fence}{language}\n{body}\n{fence}"

    def instructions(self, tools: Sequence[Mapping[str, Any]]) -> str:
        """Returns signatures, and an example of every way to call."""
        names = [tool["function"]["name"] for tool in tools]
        forms = {self._takes_text(name): self.example(name) for name in reversed(names)}
        shown = "\n".join(forms[key] for key in sorted(forms, reverse=True))
        return f"You can call these tools:\n{signature_lines(tools)}\n\nTo call one, write a block like this:\n{shown}"

    def _takes_text(self, tool: str) -> bool:
        main = self._main_argument(tool)
        return main is not None and self._argument(tool, main).takes_text and tool != JSON_BLOCK

    def _find(self, text: str, tools: Collection[str]) -> Iterator[Found]:
        for block in _blocks(text):
            tool = _tool_of(block.language, tools)
            if block.language != JSON_BLOCK and tool not in tools:
                continue
            written = text[block.start : block.end]
            if block.body is None:
                outcome: ParsedCall | ParseFault = self._fault(written, "the block is never closed", tools, tool)
            elif block.language == JSON_BLOCK:
                outcome = self._json_call(block.body, written, tools)
            else:
                outcome = self._text_call(tool, block.body, written, tools)
            yield Found(block.start, block.end, outcome)

    def _json_call(self, body: str, written: str, tools: Collection[str]) -> ParsedCall | ParseFault:
        try:
            value = read_json(body)
        except ValueError as error:
            return self._fault(written, f"the JSON is wrong: {error}", tools)
        if (why := call_fault(value)) is not None:
            return self._fault(written, why, tools)
        arguments, id = arguments_of(value.get("arguments", {})), value.get("id")
        return self._offered(ParsedCall(value["name"], arguments, None if id is None else str(id)), written, tools)

    def _text_call(self, tool: str, body: str, written: str, tools: Collection[str]) -> ParsedCall | ParseFault:
        main = self._main_argument(tool)
        if main is None or not self._takes_text(tool):
            return self._fault(written, f"{tool!r} does not take its arguments as text", tools, tool)
        return ParsedCall(tool, {main: body})

    def _leftover(self, prose: str, tools: Collection[str], acted: bool) -> ParseFault | None:
        if (near := _NEAR_MISS.search(prose)) is not None:
            why = f"the line {near[0]!r} must hold nothing but ```{JSON_BLOCK}"
            return self._fault(prose[near.start() :], why, tools)
        for full in _FULL.finditer(prose):
            if (tool := _tool_of(full[1], tools)) in tools:
                why = f"the line {full[0][:60]!r} must hold nothing but ```{full[1]}"
                return self._fault(prose[full.start() :], why, tools, tool)
        return None if acted else bare_json_fault(self, prose, tools, f"the JSON is not in a ```{JSON_BLOCK} block")


def _tool_of(language: str, tools: Collection[str]) -> str:
    """Returns the tool that a block of a language calls."""
    return language if language in tools else LANGUAGES.get(language.lower(), language.lower())


def _blocks(text: str) -> Iterator[_Block]:
    """Yields blocks in order. A block ends at the first bare fence that is at least as long as its opening one."""
    opening: re.Match[str] | None = None
    for fence in _FENCE.finditer(text):
        if opening is None:
            opening = fence
        elif not fence[2] and len(fence[1]) >= len(opening[1]):
            body = text[opening.end() + 1 : max(fence.start() - 1, opening.end() + 1)]
            yield _Block(opening.start(), fence.end(), opening[2], body)
            opening = None
    if opening is not None:
        yield _Block(opening.start(), len(text), opening[2], None)
