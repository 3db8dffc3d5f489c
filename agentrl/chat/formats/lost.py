"""Detects calls in unknown forms: in fences of code, in invented tags, as JSON after some words."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

_TRIED = 32
"""Maximum of objects of a reply that are tried."""
_NAMES = ("name", "tool", "tool_name", "function", "function_name", "action", "recipient_name")
_ARGUMENTS = ("arguments", "parameters", "args", "kwargs", "input", "action_input", "tool_input", "params")
_OBJECT = re.compile(rf'\{{\s*+"(?:{"|".join((*_NAMES, *_ARGUMENTS, "type", "id", "tool_calls"))})"\s*+:')


class Lost(NamedTuple):
    """Text that looks like a call: its start, and the tool's name."""

    start: int
    tool: str


def lost_call(text: str, tools: Collection[str], read: Callable[[str, int], Any]) -> Lost | None:
    """Finds the first part of a text that looks like a call of a tool.

    Args:
        tools: that may be called.
        read: reads the JSON at a position; returns its value and its end, and raises ValueError.
    """
    if '"name"' not in text and not any(tool in text for tool in tools):
        return None  # most replies
    found = [*_objects(text, tools, read), *_words(text, tools)]
    return min(found, default=None)


def _objects(text: str, tools: Collection[str], read: Callable[[str, int], Any]) -> Iterator[Lost]:
    for number, begin in enumerate(_OBJECT.finditer(text)):
        if number == _TRIED:
            return
        try:
            value, _ = read(text, begin.start())
        except ValueError:  # cut, or broken: both keys show that a call was meant
            name = _NAMED.search(text, begin.start(), begin.start() + 2000)
            if name is not None and name[1] in tools and _GIVEN.search(text, begin.start(), begin.start() + 4000):
                yield Lost(begin.start(), name[1])
                return
            continue
        if (tool := _called(value, tools)) is not None:
            yield Lost(begin.start(), tool)
            return


def _called(value: dict[str, Any], tools: Collection[str]) -> str | None:
    """Returns the tool that an object calls. An object of only a name and arguments calls, whatever the name is."""
    inner = value.get("function")
    said: dict[str, Any] = inner if isinstance(inner, dict) else value
    names = [said[key].removeprefix("functions.") for key in _NAMES if isinstance(said.get(key), str)]
    if not any(key in said for key in _ARGUMENTS):
        return None
    plain = isinstance(said.get("arguments", said.get("parameters")), dict) and set(said) <= _PLAIN and "name" in said
    return next((name for name in names if name in tools or plain), None)


_PLAIN = {"name", "arguments", "parameters", "id", "type"}
_NAMED = re.compile(rf'"(?:{"|".join(_NAMES)})"\s*+:\s*+"(?:functions\.)?([^"\s]++)"')
_GIVEN = re.compile(rf'"(?:{"|".join(_ARGUMENTS)})"\s*+:')


def _words(text: str, tools: Collection[str]) -> Iterator[Lost]:
    for found in _forms(tuple(tools)).finditer(text):
        yield Lost(found.start(), next(filter(None, found.groups())))
        return


@lru_cache(64)
def _forms(tools: tuple[str, ...]) -> re.Pattern[str]:
    """Matches tags that name a tool in an attribute or in their content, `Action: ...` lines, headers of harmony and
    calls of Gemma without their control tokens, a name behind a garbled control token, and a reply or a block of code
    that is only a call in Python syntax.
    """
    names = rf"(?:functions\.)?({'|'.join(map(re.escape, sorted(tools, key=len, reverse=True)))})"
    forms = (
        rf'<[^<>\s]{{1,40}}+\s[^<>]{{0,80}}?\b(?:name|tool|function)\s?=\s?["\']?{names}["\']?\s?/?>',
        rf"<(?:[\w|｜]{{1,20}}[_:-])?(?:tool|tool_name|function|function_name|invoke|action)>\s*+{names}\s*+</",
        rf"^[ \t*]*+Action[ *]*+:[ *]*+{names}\b(?=[^\n]*+\n\s*+[ *]*+Action[ _]Input)",
        rf"\bto=functions\.{names}\b",
        rf"\bcall:{names}[{{(]",
        rf"<[|｜][^<>\s]{{1,40}}+>\s*+{names}(?=\s*+(?:[<({{\[`]|:\d|\Z))",
        rf"^```\w*+[ \t]*+\n\s*+(?:\w++\s?=\s?)?(?:print\()?{names}\((?:\s*+\w++\s?=[^`]*)?\)\s*```",
        rf"\A\s*+(?:```\w*+\s*+)?(?:\w++\s?=\s?)?(?:print\()?{names}\((?:\s*+(?:\w++\s?=|[\"'{{\[])[\s\S]*)?\)\s*(?:```\s*)?\Z",
    )
    return re.compile("|".join(forms), re.MULTILINE)
