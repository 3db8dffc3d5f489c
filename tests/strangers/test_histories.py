"""Histories of other people's programs through other people's templates: every text is in the prompt, or it is said."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from agentrl.chat.recognise import parser_for
from agentrl.chat.renderer import Renderer
from agentrl.config.agent import FormatSettings
from agentrl.types.errors import AgentRLError, RenderError
from agentrl.types.task import Task
from tests.chat.families import tokenizer_of

from .cases import Case, played

SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}}
ACT = {"type": "function", "function": {"name": "act", "description": "Act.", "parameters": SCHEMA}}


@pytest.mark.parametrize(
    ("file", "case"), played("histories", ["families", "messages"], ["shown", "absent", "guarded", "refused"])
)
def test_a_history(file: str, case: Case) -> None:
    assert ("shown" in case) != ("refused" in case), "a case says what is right"
    for family in case["families"]:
        renderer = renderer_of(family)
        if "refused" in case:
            with pytest.raises(RenderError) as refused:
                renderer.start(opening(case))
            assert case["refused"] in str(refused.value), family
            assert refused.value.remedy
            continue
        ids = renderer.start(opening(case))
        text, at = renderer.tokenizer.decode(ids), 0
        for said in case["shown"]:
            assert said in text[at:], (family, said, text)
            at = text.index(said, at) + len(said)
        assert not [said for said in case.get("absent", []) if said in text], family
        if case.get("guarded"):
            assert controls(renderer, ids) == controls(renderer, renderer.start(harmless(opening(case)))), family


def opening(case: Case) -> list[dict[str, Any]]:
    """The messages as a task has them; what no task takes, as it is."""
    try:
        return Task.of("stranger", case["messages"]).instruction
    except AgentRLError:
        return list(case["messages"])


def harmless(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same with plain words in the place of the last message's."""
    return [*messages[:-1], {key: value for key, value in messages[-1].items() if key != "notes"} | {"content": "x"}]


def controls(renderer: Renderer, ids: list[int]) -> list[int]:
    known = set(renderer.tokenizer.controls.values())
    return [token for token in ids if token in known]


@cache
def renderer_of(family: str) -> Renderer:
    """The renderer of a family, with one tool."""
    tokenizer = tokenizer_of(family)
    return Renderer(tokenizer, parser_for(FormatSettings(use="auto"), tokenizer, [ACT]), [ACT])
