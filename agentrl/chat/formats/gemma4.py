"""Calls of Gemma 4: arguments without JSON's quotes, strings between special tokens."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from agentrl.chat.formats.named_calls import NamedParser
from agentrl.chat.formats.parser import MAX_DEPTH, read_json

QUOTE = '<|"|>'


class Gemma4Parser(NamedParser):
    """`<|tool_call>call:search{query:<|"|>x<|"|>,k:3}<tool_call|>`"""

    name, sign = "gemma4", "<|tool_call>"
    head = re.compile(r"<\|tool_call>\s*+call:\s*+(?P<name>[\w.-]*+)")
    tail = "<tool_call|>"
    written = "<|tool_call>call:{name}{arguments}<tool_call|>"
    native = re.compile(r"<\|tool>declaration:")
    mark = re.compile(r"<\|tool_call>\s*+call:")
    thought = ("<|channel>thought", "<channel|>")

    def _written(self, arguments: Mapping[str, Any]) -> str:
        return _shown(arguments)

    def _value(self, text: str, at: int) -> tuple[Any, int]:
        at = _skip(text, at)
        if not text.startswith("{", at):
            raise ValueError(f"{{ must follow the name of the tool, {_found(text, at)}")
        return _mapping(text, at, 1)


def _shown(value: Any) -> str:
    """Writes a value like the template: keys sorted, ignoring case."""
    if isinstance(value, str):
        if QUOTE in value:
            raise ValueError(f"gemma4 cannot express a text with {QUOTE}")
        return f"{QUOTE}{value}{QUOTE}"
    if isinstance(value, Mapping):
        members = sorted(value.items(), key=lambda item: item[0].lower())
        return "{" + ",".join(f"{_key(key)}:{_shown(inner)}" for key, inner in members) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(_shown, value)) + "]"
    return json.dumps(value)


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) and key == key.strip() else _shown(key)


def _read(text: str, at: int, depth: int) -> tuple[Any, int]:
    """Reads the value at `at`; returns it and its end."""
    at = _skip(text, at)
    if depth > MAX_DEPTH:
        raise ValueError("it is nested too deeply")
    if text.startswith(QUOTE, at):
        return _string(text, at)
    if text.startswith("{", at):
        return _mapping(text, at, depth)
    if text.startswith("[", at):
        return _list(text, at, depth)
    return _scalar(text, at)


def _string(text: str, at: int) -> tuple[str, int]:
    begin = at + len(QUOTE)
    end = text.find(QUOTE, begin)
    if end < 0:
        raise ValueError(f"a text is never closed by {QUOTE}")
    return text[begin:end], end + len(QUOTE)


def _mapping(text: str, at: int, depth: int) -> tuple[dict[str, Any], int]:
    made: dict[str, Any] = {}
    at = _skip(text, at + 1)
    while not text.startswith("}", at):
        key, at = _read_key(text, at)
        if key in made:
            raise ValueError(f"the key {key[:60]!r} is there twice")
        made[key], at = _read(text, at, depth + 1)
        at = _next(text, at, "}")
    return made, at + 1


def _read_key(text: str, at: int) -> tuple[str, int]:
    if text.startswith(QUOTE, at):
        key, at = _string(text, at)
    elif (bare := _BARE.match(text, at)) is not None:
        key, at = bare[0].strip(), bare.end()
    else:
        raise ValueError(f"expected the name of an argument, {_found(text, at)}")
    at = _skip(text, at)
    if not text.startswith(":", at):
        raise ValueError(f"a colon must follow {key[:60]!r}, {_found(text, at)}")
    return key, at + 1


def _list(text: str, at: int, depth: int) -> tuple[list[Any], int]:
    made: list[Any] = []
    at = _skip(text, at + 1)
    while not text.startswith("]", at):
        value, at = _read(text, at, depth + 1)
        made.append(value)
        at = _next(text, at, "]")
    return made, at + 1


def _next(text: str, at: int, closing: str) -> int:
    """Returns the position of the next member, or of `closing`."""
    at = _skip(text, at)
    if text.startswith(closing, at):
        return at
    if not text.startswith(",", at):
        raise ValueError(f"expected a comma or {closing}, {_found(text, at)}")
    return _skip(text, at + 1)


def _scalar(text: str, at: int) -> tuple[Any, int]:
    word = _WORD.match(text, at)
    if word is None or not (word[0] in _CONSTANTS or _NUMBER.fullmatch(word[0])):
        raise ValueError(f"expected a number, true, false, null or a text between {QUOTE}, {_found(text, at)}")
    return read_json(word[0]), word.end()


def _found(text: str, at: int) -> str:
    return f"found {text[at : at + 200].strip()[:30]!r}" if text[at:].strip() else "found the end"


def _skip(text: str, at: int) -> int:
    return _BLANK.match(text, at).end()  # type: ignore[union-attr]


_BLANK = re.compile(r"\s*+")
_BARE = re.compile(r"[^{}\[\]<>:,]++")
_WORD = re.compile(r"[\w.+-]++")
_NUMBER = re.compile(r"-?\d++(?:\.\d++)?(?:[eE][+-]?\d++)?")
_CONSTANTS = {"true", "false", "null"}
