"""Replies that look like calls in forms that no format has: told, and never the final answer."""

from __future__ import annotations

import pytest

from agentrl.chat.formats.registry import FORMATS, parser_named
from tests.chat.test_parsers import STRING, tool

TOOLS = [tool("search", ["query"], query=STRING), tool("look")]
NAMES = ["search", "look"]
PARSERS = {name: parser_named(name, TOOLS) for name in FORMATS.built_in}
CALL = '{"name": "search", "arguments": {"query": "x"}}'

LOST = [
    f"```json\n{CALL}\n```",
    f"```\n{CALL}\n```",
    f"I look it up.\n```json\n{CALL}\n```\nThen I answer.",
    f"<tools>\n{CALL}\n</tools>",
    f"<tools>{CALL}{CALL}</tools>",
    f"<function_call>{CALL}</function_call>",
    f"<|function_call|>{CALL}",
    f"I will search now: {CALL}",
    f"I will search now.\n\n{CALL}\n",
    '```json\n{"name": "search", "arguments": {"query": "x"\n```',
    '<tools>{"name": "search", "arguments": {"query": "x}</tools>',
    'So: {"tool": "search", "args": {"query": "x"}}',
    '```json\n{"action": "search", "action_input": {"query": "x"}}\n```',
    '{"type": "function", "function": {"name": "functions.search", "arguments": "{}"}}',
    '{"tool_calls": [{"name": "search", "arguments": {"query": "x"}}]}',
    'Well: {"arguments": {"query": "x"}, "name": "search"}',
    'Well: {"name": "serch", "arguments": {"query": "x"}}',
    '<invoke name="search"><parameter name="query">x</parameter></invoke>',
    '<function name="search">{"query": "x"}</function>',
    '<call tool="search" />',
    "<tool_name>search</tool_name><query>x</query>",
    'Thought: I look it up.\nAction: search\nAction Input: {"query": "x"}',
    'search(query="x")',
    "```python\nprint(search(query='x'))\n```",
    'search(\n    query="x",\n)',
    "look()",
    "I look it up.\n```python\nsearch(query='x')\n```",
    'assistantcommentary to=functions.search json{"query": "x"}',
]


@pytest.mark.parametrize("format", FORMATS.built_in)
@pytest.mark.parametrize("text", LOST)
def test_what_looks_like_a_call_is_told(format: str, text: str) -> None:
    reply = PARSERS[format].parse(text, NAMES)
    assert reply.answer is None
    assert reply.calls or reply.errors, text
    for fault in reply.errors:
        assert "Write it like this" in fault.message or "no tool" in fault.message


@pytest.mark.parametrize("format", ["hermes", "fenced"])
def test_the_example_is_of_the_tool_that_bare_json_names(format: str) -> None:
    for name in NAMES:
        (fault,) = PARSERS[format].parse(f'{{"name": "{name}", "arguments": {{}}}}', NAMES).errors
        assert name in fault.message.partition("Write it like this")[2]


@pytest.mark.parametrize("format", FORMATS.built_in)
@pytest.mark.parametrize(
    "text",
    [
        '{"name": "Alice", "age": 3}',
        'Her record: {"name": "Alice", "parameters": [1]}',
        "```json\n[1, 2]\n```",
        "I used search(query) and found Paris.",
        "The function is search, the input was x.",
        "Action: none needed. The answer is 4.",
        '<a name="top">Paris</a>',
        "<name>search</name>",
        "Use the search tool.",
        "f(x) = 3",
        '{"action": "wait", "input": 3}',
    ],
)
def test_words_about_calls_are_none(format: str, text: str) -> None:
    if format != "tags" or "</" not in text:  # to which every tag is a call
        assert PARSERS[format].parse(text, NAMES).errors == []


def test_beside_a_call_or_an_answer_and_without_tools_nothing_is_looked_for() -> None:
    parser = PARSERS["hermes"]
    assert parser.parse(f"<answer>{CALL}</answer>", NAMES).errors == []
    assert parser.parse(f"<answer>4</answer> I had {CALL}", NAMES).errors == []
    assert parser.parse(f"```json\n{CALL}\n```", []).errors == []
    assert parser.parse(f"{parser.format('', [('look', {})])}\nnot {CALL}", NAMES).errors == []


@pytest.mark.parametrize(
    ("header", "body"),
    [
        ("<|channel|>commentary––commentary to=functions.search<|message|>", '{"query": "x"}'),
        ("<|channel|>commentary functions.search<|message|>", '{"query": "x"}'),
        ("<|channel|>commentary<|constrain|>json to=functions.search<|message|>", '{"query": "x"}'),
        ("<|channel|>analysis and to=search<|message|>", '{"query": "x"'),
        ("<|channel|>commentary<|message|>", '{"query": "x"}'),
        ("<|channel|>comment<|message|>", ' {"query": "x"}'),
    ],
)
def test_a_garbled_header_of_harmony_is_told(header: str, body: str) -> None:
    for before in ("", "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"):
        reply = PARSERS["harmony"].parse(f"{before}{header}{body}<|call|>", NAMES)
        assert (reply.calls, reply.text) == ([], "")
        assert "does not say which tool is called" in reply.errors[0].message
        assert reply.thought == ("Hm." if before else None)


def test_json_in_the_final_channel_of_harmony_is_an_answer() -> None:
    reply = PARSERS["harmony"].parse('<|channel|>final<|message|>{"city": "Paris"}', NAMES)
    assert (reply.text, reply.errors) == ('{"city": "Paris"}', [])
