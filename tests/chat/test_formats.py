"""Calls as model families write them: read in their own format, and never taken for an answer in any other."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path

import pytest

from agentrl.chat.formats.harmony import HarmonyParser
from agentrl.chat.formats.parser import ParsedCall
from agentrl.chat.formats.registry import FORMATS, parser_named, parser_of
from agentrl.config.agent import AgentSettings, FormatSettings
from agentrl.types.errors import RecipeError
from tests.chat.test_parsers import STRING, tool

SEARCH = tool("search", ["query"], query=STRING, k={"type": "integer"})
TOOLS = [SEARCH, tool("look")]
NAMES = ["search", "look"]

# Format, what a model of a family writes, the arguments. Facts: the families' templates and model cards.
WRITTEN = [
    ("hermes", '<tool_call>\n{"name": "search", "arguments": {"query": "a", "k": 3}}\n</tool_call>', {"k": 3}),
    ("hermes", '<tool_call>\n{"name": "search", "arguments": "{\\"query\\": \\"a\\"}"}\n</tool_call>', {}),
    ("hermes", '<tool_call>\n{"name": "search", "arguments": {"query": "a"}}', {}),
    ("hermes", 'I look.\n<tool_call>\n{"arguments": {"query": "a"}, "name": "search"}\n</tool_call>\n', {}),
    (
        "xml",
        "<tool_call>\n<function=search>\n<parameter=query>\na\n</parameter>\n<parameter=k>\n3\n</parameter>\n"
        "</function>\n</tool_call>",
        {"k": 3},
    ),
    (
        "seed-oss",
        "<seed:tool_call>\n<function=search>\n<parameter=query>a</parameter>\n</function>\n</seed:tool_call>",
        {},
    ),
    (
        "glm-4.5",
        "<tool_call>search\n<arg_key>query</arg_key>\n<arg_value>a</arg_value>\n<arg_key>k</arg_key>\n"
        "<arg_value>3</arg_value>\n</tool_call>",
        {"k": 3},
    ),
    ("glm-4.5", "<tool_call>search<arg_key>query</arg_key><arg_value>a</arg_value></tool_call>", {}),
    (
        "minimax",
        '<minimax:tool_call>\n<invoke name="search">\n<parameter name="query">a</parameter>\n'
        '<parameter name="k">3</parameter>\n</invoke>\n</minimax:tool_call>',
        {"k": 3},
    ),
    (
        "deepseek-v3",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>search\n```json\n"
        '{"query": "a"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        {},
    ),
    (
        "deepseek-v3.1",
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>search<｜tool▁sep｜>{"query": "a"}<｜tool▁call▁end｜>'
        "<｜tool▁calls▁end｜>",
        {},
    ),
    (
        "deepseek-v3.2",
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="search">\n<｜DSML｜parameter name="query" string="true">a'
        '</｜DSML｜parameter>\n<｜DSML｜parameter name="k" string="false">3</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        {"k": 3},
    ),
    (
        "kimi-k2",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.search:0<|tool_call_argument_begin|>"
        '{"query": "a"}<|tool_call_end|><|tool_calls_section_end|>',
        {},
    ),
    (
        "deepseek-v4.1",
        '<｜DSML｜ calls>\n<｜DSML｜ invoke name="search">\n<｜DSML｜ parameter name="query" string="true">a'
        '</｜DSML｜ parameter>\n<｜DSML｜ parameter name="k" string="false">3</｜DSML｜ parameter>\n'
        "</｜DSML｜ invoke>\n</｜DSML｜ calls>",
        {"k": 3},
    ),
    (
        "atem",
        ' to=search<|message|><atem:function_calls>\n<atem:invoke name="search">\n<atem:parameter name="query">a'
        '</atem:parameter>\n<atem:parameter name="k">3</atem:parameter>\n</atem:invoke>\n</atem:function_calls>',
        {"k": 3},
    ),
    (
        "kimi-k3",
        '<|open|>tools<|sep|><|open|>call tool="search" index="1"<|sep|><|open|>argument key="query" type="string"'
        '<|sep|>a<|close|>argument<|sep|><|open|>argument key="k" type="number"<|sep|>3<|close|>argument<|sep|>'
        "<|close|>call<|sep|><|close|>tools<|sep|>",
        {"k": 3},
    ),
    (
        "inkling",
        '<|message_model|>search<|content_invoke_tool_json|>{"name":"search","args":{"k":3,"query":"a"}}<|end_message|>',
        {"k": 3},
    ),
    ("json-fence", '```json\n{"name": "search", "arguments": {"query": "a", "k": 3}}\n```', {"k": 3}),
    ("mistral", '[TOOL_CALLS]search[ARGS]{"query": "a"}', {}),
    ("mistral", '[TOOL_CALLS]search[CALL_ID]aB3dE6gH9[ARGS]{"query": "a"}', {}),
    ("mistral-v3", '[TOOL_CALLS] [{"name": "search", "arguments": {"query": "a"}, "id": "aB3dE6gH9"}]', {}),
    ("phi-4", '<|tool_call|>[{"name": "search", "arguments": {"query": "a"}}]<|/tool_call|>', {}),
    ("granite", '<|tool_call|>[{"name": "search", "arguments": {"query": "a"}}]', {}),
    ("nemotron", '<TOOLCALL>[{"name": "search", "arguments": {"query": "a"}}]</TOOLCALL>', {}),
    (
        "cohere",
        '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "search", "parameters": {"query": "a"}}\n]'
        "<|END_ACTION|>",
        {},
    ),
    ("apertus", 'I look.<|tools_prefix|>[{"search": {"query": "a"}}]<|tools_suffix|>', {}),
    ("llama3", '{"name": "search", "parameters": {"query": "a"}}', {}),
    ("llama3", '<|python_tag|>{"type": "function", "name": "search", "parameters": {"query": "a"}}', {}),
    ("pythonic", '[search(query="a", k=3)]', {"k": 3}),
    ("lfm2", "<|tool_call_start|>[search(query='a')]<|tool_call_end|>", {}),
    ("gemma", '```tool_code\nprint(search(query="a"))\n```', {}),
    ("gemma4", '<|tool_call>call:search{k:3,query:<|"|>a<|"|>}<tool_call|>', {"k": 3}),
    ("gemma4", '<|channel>thought\nHm.\n<channel|><|tool_call>call:search{query:<|"|>a<|"|>}', {}),
    ("olmo3", '<function_calls>\nsearch(query="a", k=3)\n</function_calls>', {"k": 3}),
    (
        "harmony",
        "<|channel|>analysis<|message|>I search.<|end|><|start|>assistant<|channel|>commentary to=functions.search "
        '<|constrain|>json<|message|>{"query": "a"}<|call|>',
        {},
    ),
    ("harmony", '<|start|>assistant to=functions.search<|channel|>commentary json<|message|>{"query": "a"}', {}),
]

parser_of_tools = cache(partial(parser_named, definitions=TOOLS))

IDS = [f"{name}-{number}" for number, (name, _, _) in enumerate(WRITTEN)]


@pytest.mark.parametrize(("format", "text", "more"), WRITTEN, ids=IDS)
def test_a_familys_call_is_read_in_its_format(format: str, text: str, more: dict[str, object]) -> None:
    reply = parser_of_tools(format).parse(text, NAMES)
    assert reply.errors == []
    assert [(call.name, call.arguments) for call in reply.calls] == [("search", {"query": "a", **more})]
    assert reply.text in ("", "I look.")


@pytest.mark.parametrize(("format", "text", "more"), WRITTEN, ids=IDS)
@pytest.mark.parametrize("other", FORMATS.built_in)
def test_a_call_in_another_format_is_never_the_answer(
    other: str, format: str, text: str, more: dict[str, object]
) -> None:
    reply = parser_of_tools(other).parse(text, NAMES)
    assert reply.answer is None
    assert reply.calls or reply.errors, reply
    for fault in reply.errors:
        assert fault.foreign != other
        if fault.foreign:
            assert f"in the format {fault.foreign}" in fault.message
            assert parser_of_tools(other).parse(fault.message.partition("like this:\n")[2], NAMES).calls


@pytest.mark.parametrize(
    ("format", "text", "found"),
    [
        ("hermes", WRITTEN[4][1], "xml"),
        ("hermes", "<search>a</search>", "tags"),
        ("hermes", '[search(query="a")]', "pythonic"),
        ("hermes", '```tool_call\n{"name": "look"}\n```', "fenced"),
        ("tags", '{"name": "search", "parameters": {"query": "a"}}', "llama3"),
        ("xml", '<tool_call>\n{"name": "search", "arguments": {"query": "a"}}\n</tool_call>', "hermes"),
        ("fenced", '[TOOL_CALLS]search[ARGS]{"query": "a"}', "mistral"),
    ],
)
def test_the_fault_names_the_format(format: str, text: str, found: str) -> None:
    said = text if found in ("pythonic", "llama3") else f"Well.\n{text}"
    (fault,) = parser_named(format, TOOLS).parse(said, NAMES).errors
    assert fault.foreign == found
    assert not fault.tool


@pytest.mark.parametrize("format", FORMATS.built_in)
def test_answers_that_only_speak_of_calls_stay_answers(format: str) -> None:
    parser = parser_named(format, TOOLS)
    for text in (
        "[1]: see (there)",
        '{"city": "Paris"}',
        "I would search.",
        "a < b and b > c",
        "`x = [1, 2]`",
        "[a](b)",
    ):
        assert parser.parse(text, NAMES).errors == [], text
    # Where no tool can be called, and beside an answer, no other format is looked for.
    assert all(not fault.foreign for fault in parser.parse(WRITTEN[0][1], []).errors)
    assert parser.parse("<answer>say <search>a</search></answer>", NAMES).answer is not None


def test_every_format_has_a_sample() -> None:
    assert {name for name, _, _ in WRITTEN} == set(FORMATS.built_in) - {"fenced", "tags"}
    assert set(FORMATS.aliases.values()) <= set(FORMATS.built_in)


def test_ids_of_calls_are_kept() -> None:
    read = [call for name, text, _ in WRITTEN for call in parser_named(name, TOOLS).parse(text, NAMES).calls if call.id]
    assert [call.id for call in read] == ["functions.search:0", "aB3dE6gH9", "aB3dE6gH9", "0"]


def test_llama_calls_stand_on_lines_or_behind_semicolons() -> None:
    parser = parser_named("llama3", TOOLS)
    call = '{"name": "look", "parameters": {}}'
    for text in (f"{call}\n{call}", f"{call}; {call}", f"<|python_tag|>{call};{call}", f"Two:\n{call}\n{call}"):
        reply = parser.parse(text, NAMES)
        assert [c.name for c in reply.calls] == ["look", "look"], text
        assert reply.errors == []
    assert parser.parse('Here:\n{"name": "Ann", "age": 3}', NAMES).calls == []
    assert "the JSON is wrong" in parser.parse('{"name": "look", "parameters": {', NAMES).errors[0].message
    assert "no JSON follows" in parser.parse("<|python_tag|>look()", NAMES).errors[0].message


def test_pythonic_values() -> None:
    text = "[search(query='it\\'s \"x\"', k=-3, a=[1, 2.5, (True, None)], b={'c': null, 'd': false})]"
    (call,) = parser_named("pythonic", TOOLS).parse(text, NAMES).calls
    assert call.arguments == {"query": 'it\'s "x"', "k": -3, "a": [1, 2.5, [True, None]], "b": {"c": None, "d": False}}
    for text, says in [
        ("[search(x)]", "written out"),
        ("[search(query=f(1))]", "written out"),
        ("[search(query={1: 2})]", "different strings"),
        ("[search(k=99999999999999999999)]", "64 bits"),
        ("[search(k=1e999)]", "too large"),
        ("[search('a', 'b')]", "by name"),
        ("[search(query=']", "no Python"),
        ("[search(query='a'), 3]", "nothing else"),
        ("[search(query='\\ud800')]", "surrogate"),
    ]:
        assert says in parser_named("pythonic", TOOLS).parse(text, NAMES).errors[0].message, text


def test_values_of_gemma_4() -> None:
    parser = parser_named("gemma4", TOOLS)
    text = (
        '<|tool_call>call:search{a:[1,-2.5e3,[true,null]],b:{c:{},<|"|>d:e<|"|>:<|"|>{x},<|"|>}, query: <|"|><|"|>}'
        "<tool_call|>"
    )
    (call,) = parser.parse(text, NAMES).calls
    expected = {"a": [1, -2500.0, [True, None]], "b": {"c": {}, "d:e": "{x},"}, "query": ""}
    assert call.arguments == expected
    assert parser.parse(parser.format("", [("search", expected)]), NAMES).calls == [call]
    for text, says in [
        ("search(x)", "{ must follow the name of the tool, found '(x)'"),
        ("search{query:a}", "a text between"),
        ('search{query:<|"|>a}', "never closed"),
        ("search{k 3}", "a colon must follow 'k 3'"),
        ("search{k:3 query:4}", "a comma or }"),
        ("search{k:3,k:4}", "there twice"),
        ("search{k:99999999999999999999}", "64 bits"),
        ("search{k:" + "[" * 99, "too deeply"),
        ("search{", "found the end"),
        ("{}", "name of the tool is missing"),
        ("search{} and so on", "must follow the arguments"),
    ]:
        assert says in parser.parse(f"<|tool_call>call:{text}", NAMES).errors[0].message, text
    with pytest.raises(ValueError, match="cannot express a text with"):
        parser.format("", [("look", {"x": '<|"|>'})])


def test_thoughts_of_gemma_4_are_no_answer() -> None:
    parser = parser_named("gemma4", TOOLS)
    reply = parser.parse("<|channel>thought\nEasy.\n<channel|>Paris", NAMES)
    assert (reply.thought, reply.text) == ("Easy.", "Paris")
    (fault,) = parser.parse("<|channel>thought\nI think it is Paris", NAMES).errors
    assert fault.message.startswith("<|channel>thought is never closed: end your thoughts with <channel|>")


class TestHarmony:
    parser = parser_named("harmony", TOOLS)

    def test_analysis_is_thought_and_no_answer(self) -> None:
        said = "<|channel|>analysis<|message|>Easy.<|end|><|start|>assistant<|channel|>final<|message|>Paris<|return|>"
        reply = self.parser.parse(said, NAMES)
        assert (reply.thought, reply.text, reply.errors) == ("Easy.", "Paris", [])
        only = self.parser.parse("<|channel|>analysis<|message|>I think it is Paris", NAMES)
        assert only.thought == "I think it is Paris"
        assert "ends with your analysis" in only.errors[0].message
        assert self.parser.parse("Paris", NAMES).text == "Paris"

    def test_a_preamble_is_no_call(self) -> None:
        said = (
            "<|channel|>commentary<|message|>I search.<|end|><|start|>assistant<|channel|>commentary to=functions.look"
        )
        reply = self.parser.parse(f"{said} <|constrain|>json<|message|>{{}}", NAMES)
        assert reply.calls == [ParsedCall("look", {})]
        assert reply.text == "I search."

    def test_marks_within_arguments_are_text(self) -> None:
        text = self.parser.format("", [("search", {"query": "<|end|><|channel|>final<|message|>x"})])
        assert self.parser.parse(text, NAMES).calls[0].arguments["query"] == "<|end|><|channel|>final<|message|>x"

    def test_a_history_comes_as_keys(self) -> None:
        """The template of gpt-oss refuses channels in a message's content."""
        parser = HarmonyParser(TOOLS)
        said = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>"
        assert parser.message(f"{said}final<|message|>Hi") == {"role": "assistant", "content": "Hi", "thinking": "Hm."}
        call = parser.message(f'{said}commentary to=functions.search<|message|>{{"query": "a"}}')
        assert call["tool_calls"][0]["function"] == {"name": "search", "arguments": {"query": "a"}}
        assert call["content"] == "Hm."

    def test_two_calls_in_a_reply_are_refused(self) -> None:
        with pytest.raises(ValueError, match="two calls"):
            self.parser.format("", [("look", {}), ("look", {})])


MINE = """
from agentrl.chat.formats.parser import Found, ParsedCall, Parser
import re
class Shout(Parser):
    name = "shout"
    def format(self, text, calls):
        return "\\n".join([text] * bool(text) + [f"!{name}" for name, _ in calls])
    def _find(self, text, tools):
        for found in re.finditer(r"^!(\\w+)$", text, re.MULTILINE):
            yield Found(found.start(), found.end(), self._offered(ParsedCall(found[1], {}), found[0], tools))
class Other: ...
"""


def test_a_parser_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    parser = parser_named("./mine.py:Shout", TOOLS, tmp_path)
    assert parser.parse("So.\n!look", NAMES).calls == [ParsedCall("look", {})]
    assert "there is no tool 'lok'; did you mean 'look'?" in parser.parse("!lok", NAMES).errors[0].message
    assert parser.parse("<search>a</search>", NAMES).errors[0].foreign == "tags"
    assert "!search" in parser.instructions(TOOLS)
    with pytest.raises(RecipeError, match=r"not a Parser subclass.*\n.*defines: Shout"):
        parser_named("./mine.py:Other", TOOLS, tmp_path)
    with pytest.raises(RecipeError, match="there is no file"):
        parser_named("./none.py:Shout", TOOLS, tmp_path)


def test_a_tool_that_a_format_cannot_name_is_refused() -> None:
    with pytest.raises(RecipeError, match="pythonic cannot express 'look-up'"):
        parser_named("pythonic", [tool("look-up")])


def test_settings_of_a_parser_of_ones_own(tmp_path: Path) -> None:
    code = MINE.replace("class Shout(Parser):", "class Shout(Parser):\n    def __init__(self, definitions, mark='!'):\n"
                        "        super().__init__(definitions)\n        self.sign = mark\n")  # fmt: skip
    (tmp_path / "mine.py").write_text(code)
    given = AgentSettings.model_validate({"format": {"./mine.py:Shout": {"mark": "?"}}}).format
    parser = parser_of(given, TOOLS, tmp_path)
    assert parser.sign == "?"  # type: ignore[attr-defined]
    with pytest.raises(RecipeError, match=r"agent.format.mrak: ./mine.py:Shout has no setting 'mrak'\n.*'mark'"):
        parser_of(FormatSettings.model_validate({"use": "./mine.py:Shout", "mrak": 1}), TOOLS, tmp_path)
