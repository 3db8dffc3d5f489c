"""Schemas of other people's tools, with calls as formats write them: the right arguments, or what the model is told."""

from __future__ import annotations

from typing import Any

import pytest

from agentrl.chat.formats.parser import Parser, same, signature_lines
from agentrl.chat.formats.registry import parser_named
from agentrl.tools.schema import defined_tool
from agentrl.types.parts.schemas import complaint

from .cases import Case, played

FORMATS = {
    "xml": (
        "<tool_call>\n<function=act>\n{}</function>\n</tool_call>",
        "<parameter={}>\n{}\n</parameter>\n",
    ),
    "glm-4.5": ("<tool_call>act\n{}</tool_call>", "<arg_key>{}</arg_key>\n<arg_value>{}</arg_value>\n"),
    "minimax": (
        '<minimax:tool_call>\n<invoke name="act">\n{}</invoke>\n</minimax:tool_call>',
        '<parameter name="{}">{}</parameter>\n',
    ),
}
"""How a call is written in formats whose values are bare text: all of it, and an argument."""


@pytest.mark.parametrize(("file", "case"), played("schemas", ["schema"], ["texts", "call", "arguments", "refused"]))
def test_a_schema(file: str, case: Case) -> None:
    assert ("texts" in case) != ("call" in case), "a case has texts, or a call"
    assert ("arguments" in case) != ("refused" in case), "a case says what is right"
    schema = defined_tool({"name": "act", "parameters": case["schema"]}, dict).schema
    definition = {"type": "function", "function": {"name": "act", "description": "", "parameters": schema}}
    assert signature_lines([definition]).startswith("- act(")
    for given in called(case, definition):
        wrong = complaint(schema, given)
        if "refused" in case:
            assert wrong is not None, given
            assert case["refused"] in wrong
        else:
            assert wrong is None, given
            assert same(given, case["arguments"]), given


def called(case: Case, definition: dict[str, Any]) -> list[dict[str, Any]]:
    """The arguments of the call, as each format reads them."""
    if "call" in case:
        parser = parser_named("hermes", [definition])
        return [read(parser, parser.format("", [("act", case["call"])]))]
    found = []
    for format, (call, argument) in FORMATS.items():
        written = "".join(argument.format(name, text) for name, text in case["texts"].items())
        found.append(read(parser_named(format, [definition]), call.format(written)))
    return found


def read(parser: Parser, reply: str) -> dict[str, Any]:
    said = parser.parse(reply, ["act"])
    assert not said.errors, said
    assert parser.example("act")
    return said.calls[0].arguments
