"""Hints on names that no tool has: only the first of a reply are worked out, for a degenerate one has thousands."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection
from typing import Any

import pytest

from agentrl.chat.formats.parser import MAX_HINTS
from agentrl.chat.formats.registry import parser_named
from tests.chat.test_parsers import NAMES, TOOLS

MANY = 2000


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns the names that have been compared with those of the tools."""
    names: list[str] = []
    real: Callable[..., list[str]] = difflib.get_close_matches

    def noted(word: str, possibilities: Collection[str], *others: Any) -> list[str]:
        names.append(word)
        return real(word, list(possibilities), *others)

    monkeypatch.setattr(difflib, "get_close_matches", noted)
    return names


@pytest.mark.parametrize(
    ("format", "written"),
    [
        ("hermes", '<tool_call>{{"name": "lok{0}", "arguments": {{}}}}</tool_call>'),
        ("xml", "<function=lok{0}></function>"),
        ("tags", "</thing_{0}>"),
    ],
)
def test_only_the_first_names_are_compared(format: str, written: str, compared: list[str]) -> None:
    parser = parser_named(format, TOOLS)
    text = "".join(written.format(number) for number in range(MANY))
    for _ in range(2):  # each reply has hints of its own
        compared.clear()
        parser.parse(text, NAMES)
        assert 0 < len(compared) <= MAX_HINTS


def test_a_tag_is_compared_once(compared: list[str]) -> None:
    parser_named("tags", TOOLS).parse("</thing>" * MANY, NAMES)
    assert compared == ["thing"]


def test_a_reply_with_one_wrong_name_has_its_hint() -> None:
    reply = parser_named("hermes", TOOLS).parse('<tool_call>{"name": "serch", "arguments": {}}</tool_call>', NAMES)
    assert "did you mean 'search'?" in reply.errors[0].message
