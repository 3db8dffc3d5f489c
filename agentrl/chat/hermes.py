"""The Hermes format (Hermes 2 and 3, Qwen2.5, Qwen3, SmolLM3): one JSON object in each `<tool_call>`."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from agentrl.chat.parser import Call, Found, ParsedCall, ParseFault, Parser, read_json

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_NEAR_MISS = re.compile(r"</?\s*\|?tool[ _-]?calls?\|?\s*/?>", re.IGNORECASE)
_KEYS = {"name", "arguments", "id"}


class HermesParser(Parser):
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`"""

    name = "hermes"
    native = re.compile(r"<tool_call>\s*\{")

    def format(self, text: str, calls: Sequence[Call]) -> str:
        """Qwen's layout: tags and JSON on lines of their own."""
        written = [f"{OPEN}\n{_json({'name': n, 'arguments': dict(a)})}\n{CLOSE}" for n, a in calls]
        return "\n".join(([text] if text else []) + written)

    def instructions(self, tools: Sequence[Mapping[str, Any]]) -> str:
        """The wording that Qwen's templates use, which these models were trained on."""
        shown = "\n".join(_json(tool) for tool in tools)
        return (
            "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
            "You are provided with function signatures within <tools></tools> XML tags:\n"
            f"<tools>\n{shown}\n</tools>\n\n"
            "For each function call, return a json object with function name and arguments within "
            f'{OPEN}{CLOSE} XML tags:\n{OPEN}\n{{"name": <function-name>, "arguments": <args-json-object>}}\n{CLOSE}'
        )

    def _find(self, text: str, tools: Collection[str]) -> Iterator[Found]:
        at = 0
        while (start := text.find(OPEN, at)) >= 0:
            value, end, why = None, start + len(OPEN), None
            try:
                value, end = read_json(text, end)
            except ValueError as error:
                why = f"the JSON is wrong: {error}"
            else:
                rest = text[end:].lstrip()
                if not rest or rest.startswith(OPEN):
                    why = f"{CLOSE} is missing"
                elif not rest.startswith(CLOSE):
                    why = f"{CLOSE} must follow the JSON object, found {rest[:20]!r} (one call per {OPEN})"
            at = _end_of_call(text, end)
            written = text[start:at]
            outcome = self._fault(written, why, tools) if why is not None else self._checked(value, written, tools)
            yield Found(start, at, outcome)

    def _checked(self, value: Any, written: str, tools: Collection[str]) -> ParsedCall | ParseFault:
        why = call_fault(value)
        if why is not None:
            name = value.get("name") if isinstance(value, dict) else None
            return self._fault(written, why, tools, name if isinstance(name, str) else None)
        return self._offered(ParsedCall(value["name"], value.get("arguments", {}), value.get("id")), written, tools)

    def _leftover(self, prose: str, tools: Collection[str], acted: bool) -> ParseFault | None:
        if (near := _NEAR_MISS.search(prose)) is not None:
            return self._fault(prose[near.start() :], f"found {near[0]!r} where {OPEN}...{CLOSE} is needed", tools)
        return None if acted else bare_json_fault(self, prose, tools, f"the JSON is not between {OPEN} and {CLOSE}")


def call_fault(value: Any) -> str | None:
    """What is wrong with a call's JSON value; None if nothing is. Shared by the formats that write calls as JSON."""
    if not isinstance(value, dict):
        return f"it must be a JSON object, found {_kind(value)}"
    if "name" not in value:
        return 'the key "name" is missing'
    if not isinstance(value["name"], str) or not value["name"]:
        return f'"name" must be the name of a tool, found {_kind(value["name"])}'
    if unexpected := [key for key in value if key not in _KEYS]:
        return f'unexpected key {unexpected[0][:60]!r}: the arguments belong into "arguments"'
    if not isinstance(value.get("arguments", {}), dict):
        return f'"arguments" must be a JSON object, found {_kind(value["arguments"])}'
    if not isinstance(value.get("id", ""), str):
        return f'"id" must be a string, found {_kind(value["id"])}'
    return None


def bare_json_fault(parser: Parser, prose: str, tools: Collection[str], why: str) -> ParseFault | None:
    """A fault if the whole prose is a call's JSON that lacks its wrapping: models forget it, and it is no answer."""
    try:
        value = read_json(prose)
    except ValueError:
        return None
    if not (isinstance(value, dict) and "name" in value and ("arguments" in value or "parameters" in value)):
        return None
    return parser._fault(prose, why, tools, value["name"] if isinstance(value["name"], str) else None)


def _end_of_call(text: str, at: int) -> int:
    """Where reading goes on after a call: after its closing tag or, if that is missing, before the next opening one."""
    following = text.find(OPEN, at)
    closing = text.find(CLOSE, at, following if following >= 0 else len(text))
    if closing >= 0:
        return closing + len(CLOSE)
    return following if following >= 0 else len(text)


def _kind(value: Any) -> str:
    kinds = {bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "a list", dict: "an object"}
    return "null" if value is None else kinds[type(value)] if value != "" else "an empty string"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
