"""Replies of other people's models: what they call, say and think, and what they are told."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from agentrl.chat.formats.parser import Parser, Reply, same
from agentrl.chat.formats.registry import parser_named
from agentrl.rollouts.agent import ToolAgent
from agentrl.tools.schema import defined_tool
from agentrl.types.parts.schemas import complaint

from .cases import HERE, Case, played, read

TOOLS = read(HERE / "tools.yaml")
"""Schemas of the arguments, by tool, by set."""
RIGHT = ("calls", "content", "answer", "told", "refused")
"""What a case may say, one of them at least: the calls, what is said beside them, what stands in `<answer>`, words of
the fault that the model is told, words of the tool's complaint about the arguments of the first call."""
_PARSERS: dict[tuple[str, str], Parser] = {}


@pytest.mark.parametrize(
    ("format", "case"), played("replies", ["reply"], [*RIGHT, "thought", "opened", "tools", "foreign"])
)
def test_a_reply(format: str, case: Case) -> None:
    assert set(case) & set(RIGHT), "a case says what is right"
    tools = case.get("tools", "office")
    parser, names = parser_of(format, tools), list(TOOLS[tools])
    reply = parser.parse((parser.thought[0] if case.get("opened") else "") + case["reply"], names)
    calls = [{call.name: call.arguments} for call in reply.calls]
    assert same(calls, case.get("calls", [])), reply
    if "told" in case:
        assert case["told"] in "\n".join(fault.message for fault in reply.errors), reply
    else:
        assert reply.errors == []
    assert {fault.foreign for fault in reply.errors} - {""} == {case.get("foreign", "")} - {""}
    assert reply.answer == case.get("answer")
    if "content" in case or not (calls or reply.errors or reply.answer):
        assert reply.text == case["content"]
    if "thought" in case:
        assert reply.thought == case["thought"]
    assert becomes(reply) == ("calls" if calls or ("told" in case and reply.answer is None) else "answer")
    complaints = [wrong for call in reply.calls if (wrong := complaint(schema(tools, call.name), call.arguments))]
    assert complaints == [] if "refused" not in case else case["refused"] in complaints[0]


def parser_of(format: str, tools: str) -> Parser:
    """The parser of a format for a set of tools, as a recipe makes it."""
    if (format, tools) not in _PARSERS:
        _PARSERS[format, tools] = parser_named(format, [defined(name, TOOLS[tools][name]) for name in TOOLS[tools]])
    return _PARSERS[format, tools]


def defined(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    """The definition of a tool."""
    shape = {"type": "object", **schema}
    return {"type": "function", "function": {"name": name, "description": f"The tool {name}.", "parameters": shape}}


def schema(tools: str, name: str) -> dict[str, Any]:
    """The schema that calls of a tool are held against."""
    return defined_tool(defined(name, TOOLS[tools][name]), dict).schema


def becomes(reply: Reply) -> str:
    """What the agent does about a reply: `calls` runs them and tells faults, `answer` ends the episode."""
    done: list[str] = []

    async def generate(begin: str) -> Reply:
        return reply

    async def run_tools(said: Reply) -> None:
        done.append("calls")

    async def respond(said: Reply) -> None: ...

    def finish(stop: str, answer: str) -> None:
        done.append(stop)

    conversation: Any = SimpleNamespace(
        generate=generate, run_tools=run_tools, respond=respond, finish=finish, turns=[SimpleNamespace(finish="stop")]
    )
    asyncio.run(ToolAgent().take_turn(conversation))
    return done[0]
