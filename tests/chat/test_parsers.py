"""The parsers: what models write is read, and what cannot be read becomes a fault that teaches."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agentrl.chat import formats
from agentrl.chat.formats.parser import MAX_DEPTH, MAX_FAULTS, ParsedCall, Parser, Reply, signature_lines
from agentrl.chat.formats.registry import FORMATS, parser_named
from agentrl.types.errors import RecipeError


def tool(name: str, required: list[str] | None = None, **properties: dict[str, Any]) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": properties,
        "required": list(properties) if required is None else required,
    }
    return {"type": "function", "function": {"name": name, "description": f"The {name}.", "parameters": schema}}


STRING, INTEGER = {"type": "string"}, {"type": "integer"}
TOOLS = [
    tool("search", query=STRING),
    tool("look"),
    tool("python", ["code"], code=STRING, timeout_s={"type": "number", "default": 1.0}),
    tool("step", count=INTEGER),
    tool("buy", item=STRING, count=INTEGER, tags={"type": "array", "items": STRING}),
    tool("find", ["text"], text={"anyOf": [STRING, {"type": "null"}]}),
]
NAMES = [t["function"]["name"] for t in TOOLS]
PARSER = {name: parser_named(name, TOOLS) for name in FORMATS.built_in}
# The shared machinery is tried on many texts under the oldest formats, what each format adds to it on fewer.
EXAMPLES = {name: 100 if name in ("hermes", "xml", "fenced", "tags") else 20 for name in FORMATS.built_in}


def parse(format: str, text: str) -> Reply:
    return PARSER[format].parse(text, NAMES)


READ: list[tuple[str, str, list[tuple[str, dict[str, Any]]]]] = [
    ("hermes", '<tool_call>{"name": "look", "arguments": {}}</tool_call>', [("look", {})]),
    ("hermes", '<tool_call>\n{"name": "look"}\n</tool_call>', [("look", {})]),
    (
        "hermes",
        '<tool_call>{"name": "search", "arguments": {"query": "a</tool_call>"}}</tool_call>'
        '<tool_call>{"name": "step", "arguments": {"count": 2}}</tool_call>',
        [("search", {"query": "a</tool_call>"}), ("step", {"count": 2})],
    ),
    (
        "hermes",
        '<tool_call>{"name": "search", "arguments": {"query": "a\nb"}}</tool_call>',
        [("search", {"query": "a\nb"})],
    ),
    ("xml", "<function=look></function>", [("look", {})]),
    ("xml", "<function=step><parameter=count>3</parameter></function>", [("step", {"count": 3})]),
    ("xml", "<function=search>\n<parameter=query>\n3\n</parameter>\n</function>", [("search", {"query": "3"})]),
    (
        "xml",
        "<tool_call>\n<function=python>\n<parameter=code>\nif 1:\n    x = '</parameter>'\n</parameter>\n"
        "</function>\n</tool_call>",
        [("python", {"code": "if 1:\n    x = '</parameter>'"})],
    ),
    ("fenced", "```python\nprint(1)\n```", [("python", {"code": "print(1)"})]),
    ("fenced", "Now:\n```py\nx = '''\n````\n'''\n````\n```", [("python", {"code": "x = '''"})]),
    ("fenced", "````python\nx = '''\n```\n'''\n````", [("python", {"code": "x = '''\n```\n'''"})]),
    ("fenced", '```tool_call\n{"name": "look"}\n```', [("look", {})]),
    ("fenced", "```json\n{}\n```", []),
    ("tags", "<search>who is it</search>", [("search", {"query": "who is it"})]),
    ("tags", "<look/> and <look></look> and <look />", [("look", {})] * 3),
    ("tags", "<step>3</step>", [("step", {"count": 3})]),
    ("tags", '<buy>{"item": "x", "count": 1, "tags": []}</buy>', [("buy", {"item": "x", "count": 1, "tags": []})]),
    ("tags", "<python>x = {1: 2}</python>", [("python", {"code": "x = {1: 2}"})]),
    ("tags", '<python>{"a": 1}</python>', [("python", {"code": '{"a": 1}'})]),
    ("tags", "<search>if a < b and b > c</search>", [("search", {"query": "if a < b and b > c"})]),
    ("tags", "<find>5</find>", [("find", {"text": "5"})]),
]


@pytest.mark.parametrize(("format", "text", "calls"), READ)
def test_calls_are_read(format: str, text: str, calls: list[tuple[str, dict[str, Any]]]) -> None:
    reply = parse(format, text)
    assert [(c.name, c.arguments) for c in reply.calls] == calls
    assert reply.errors == []


BIG = "[" * 5000
MALFORMED: list[tuple[str, str, str]] = [
    # format, what the model wrote, what the fault says
    (
        "hermes",
        '<tool_call>{"name": "search", "arguments": {"query": "x"}}<tool_call>{"name": "look"',
        "</tool_call> is missing",
    ),
    ("hermes", '<tool_call>{"name": "search", "arguments": {"query": "x"}', "the JSON is wrong"),
    ("hermes", "<tool_call>{'name': 'search'}</tool_call>", "double quotes"),
    ("hermes", '<tool_call>{"name": "search",}</tool_call>', "the JSON is wrong"),
    ("hermes", "<tool_call></tool_call>", "the JSON is wrong"),
    ("hermes", '<tool_call>{"arguments": {"query": "x"}}</tool_call>', '"name" is missing'),
    ("hermes", '<tool_call>{"name": null, "arguments": {}}</tool_call>', "found null"),
    ("hermes", '<tool_call>{"name": 7, "arguments": {}}</tool_call>', "found a number"),
    ("hermes", '<tool_call>{"name": "", "arguments": {}}</tool_call>', "an empty string"),
    ("hermes", '<tool_call>{"name": "search", "arguments": "x"}</tool_call>', '"arguments" must be a JSON object'),
    ("hermes", '<tool_call>{"name": "search", "arguments": null}</tool_call>', "found null"),
    ("hermes", '<tool_call>{"name": "search", "arguments": ["x"]}</tool_call>', "found a list"),
    (
        "hermes",
        '<tool_call>{"name": "search", "parameters": {"query": "x"}}</tool_call>',
        "unexpected key 'parameters'",
    ),
    ("hermes", '<tool_call>{"name": "search", "query": "x"}</tool_call>', "unexpected key 'query'"),
    ("hermes", '<tool_call>[{"name": "look"}]</tool_call>', "found a list"),
    ("hermes", '<tool_call>"look"</tool_call>', "found a string"),
    ("hermes", '<tool_call>{"name": "serch", "arguments": {}}</tool_call>', "did you mean 'search'?"),
    ("hermes", '<tool_call>{"name": "zzz", "arguments": {}}</tool_call>', "tools: search, look"),
    ("hermes", '<tool_call>{"name": "look", "name": "look"}</tool_call>', "the key 'name' is there twice"),
    (
        "hermes",
        '<tool_call>{"name": "step", "arguments": {"count": 1, "count": 2}}</tool_call>',
        "'count' is there twice",
    ),
    ("hermes", '<tool_call>{"name": "look"} thanks!</tool_call>', "found 'thanks!"),
    ("hermes", '<tool_call>{"name": "look"}{"name": "look"}</tool_call>', "one call per <tool_call>"),
    ("hermes", '<tool_call>{"name": "step", "arguments": {"count": NaN}}</tool_call>', "NaN is no JSON"),
    ("hermes", '<tool_call>{"name": "step", "arguments": {"count": 1e999}}</tool_call>', "too large"),
    ("hermes", '<tool_call>{"name": "step", "arguments": {"count": %s}}</tool_call>' % ("9" * 6000), "64 bits"),
    ("hermes", f'<tool_call>{{"name": "step", "arguments": {{"count": {BIG}}}}}</tool_call>', "the JSON is wrong"),
    (
        "hermes",
        '<tool_call>{"name": "step", "arguments": {"count": %s}}</tool_call>' % ("[" * MAX_DEPTH + "]" * MAX_DEPTH),
        "nested too deeply",
    ),
    ("hermes", '<tool_call>{"name": "search", "arguments": {"query": "\\ud800"}}</tool_call>', "surrogate"),
    ("hermes", '<tool_call>{"name": "look", "id": [3]}</tool_call>', '"id" must be a string'),
    ("hermes", '<Tool_Call>{"name": "look"}</Tool_Call>', "found '<Tool_Call>'"),
    ("hermes", '<toolcall>{"name": "look"}</toolcall>', "found '<toolcall>'"),
    ("hermes", '{"name": "look"}</tool_call>', "found '</tool_call>'"),
    ("hermes", '{"name": "search", "arguments": {"query": "x"}}', "not between <tool_call>"),
    ("hermes", "<think>I wonder", "end your thoughts with </think>"),
    ("hermes", "<answer>Paris", "<answer> is never closed"),
    ("xml", "<function=search><parameter=query>x</parameter>", "around it is never closed"),
    ("xml", "<function=look>", "</function> is missing"),
    ("xml", "<function=search><parameter=query>x</function>", "never closed"),
    ("xml", "<function=search><parameter=query>x", "never closed"),
    ("xml", "<function=><parameter=query>x</parameter></function>", "the name of the tool is missing"),
    ("xml", "<function><parameter=query>x</parameter></function>", "the name of the tool is missing"),
    ("xml", "<function=search><parameter=>x</parameter></function>", "the name of a parameter is missing"),
    (
        "xml",
        "<function=search><parameter=query>x</parameter><parameter=query>y</parameter></function>",
        "'query' is there twice",
    ),
    ("xml", '<function=search>{"query": "x"}</function>', "expected <parameter=...>"),
    ("xml", "<function=serch></function>", "did you mean 'search'?"),
    ("xml", "<parameter=query>x</parameter>", "stands outside of a call"),
    ("xml", "<tool_call>search</tool_call>", "no <function=...>"),
    ("fenced", "```python\nprint(1)", "the block is never closed"),
    ("fenced", '```tool_call\n{"name": "look"', "the block is never closed"),
    ("fenced", "```tool_call\nlook\n```", "the JSON is wrong"),
    ("fenced", '```tool_call\n{"name": "look"} x\n```', "something follows the JSON"),
    ("fenced", '```tool_call\n{"arguments": {}}\n```', '"name" is missing'),
    ("fenced", '```tool_call {"name": "look"}\n```', "must hold nothing but"),
    ("fenced", "```buy\nmilk\n```", "does not take its arguments as text"),
    ("fenced", "```look\n\n```", "does not take its arguments as text"),
    ("fenced", '{"name": "search", "arguments": {"query": "x"}}', "not in a ```tool_call block"),
    ("tags", "<search>x", "</search> is missing"),
    ("tags", "<search>x<look/></search>", "<look> stands inside <search>"),
    ("tags", "<search>x <search>y</search>", "stands inside"),
    ("tags", '<search query="x"/>', "takes no attributes"),
    ("tags", '<search query="x">y</search>', "takes no attributes"),
    ("tags", "<serch>x</serch>", "found '<serch>'"),
    ("tags", "<SEARCH>x</SEARCH>", "found '<SEARCH>'"),
    ("tags", "< search>x</ search>", "found '< search>'"),
    ("tags", "x</search>", "found '</search>'"),
    ("tags", "<teleport>home</teleport>", "there is no tool 'teleport'"),
    ("tags", "<look>around</look>", "takes no argument"),
    ("tags", "<buy>milk</buy>", "must be a JSON object"),
    ("tags", '<buy>{"item": "milk", "item": "x"}</buy>', "is there twice"),
    ("tags", "<answer>Paris", "<answer> is never closed"),
]


@pytest.mark.parametrize(("format", "text", "says"), MALFORMED)
def test_malformed_calls_are_faults_that_teach(format: str, text: str, says: str) -> None:
    reply = parse(format, text)
    assert reply.calls == []
    assert reply.answer is None
    assert reply.errors
    fault = reply.errors[0]
    assert says in fault.message
    assert 0 < len(fault.snippet) <= 120
    assert len(fault.message) < 600
    if "Write it like this:\n" in fault.message:  # and what it shows is right
        shown = fault.message.split("Write it like this:\n")[1]
        assert parse(format, shown).errors == []
        assert len(parse(format, shown).calls) == 1


def test_twenty_kinds_and_more() -> None:
    assert len({says for _, _, says in MALFORMED}) >= 20


def test_good_calls_survive_beside_bad_ones() -> None:
    text = '<tool_call>{"name": "look"</tool_call>then<tool_call>{"name": "look"}</tool_call><tool_call>{"name": "x"}'
    reply = parse("hermes", text)
    assert [c.name for c in reply.calls] == ["look"]
    assert len(reply.errors) == 2
    assert reply.text == "then"


@pytest.mark.parametrize(
    ("format", "text"),
    [
        ("hermes", '<tool_call><tool_call>{"name": "look"}</tool_call></tool_call>'),
        ("xml", "<function=search><function=look></function></function>"),
    ],
)
def test_of_nested_calls_the_inner_one_is_read(format: str, text: str) -> None:
    reply = parse(format, text)
    assert reply.calls == [ParsedCall("look", {})]
    assert len(reply.errors) == 1


@pytest.mark.parametrize(
    ("format", "broken"), [("hermes", "<tool_call>"), ("xml", "<function=x>"), ("tags", "<search>")]
)
def test_a_degenerate_reply_gets_a_few_faults(format: str, broken: str) -> None:
    errors = parse(format, broken * 100).errors
    assert len(errors) == MAX_FAULTS
    assert "(96 more tool calls of this reply cannot be read)" in errors[-1].message


def test_call_ids_are_kept() -> None:
    reply = parse("hermes", '<tool_call>{"id": "c7", "name": "look", "arguments": {}}</tool_call>')
    assert reply.calls == [ParsedCall("look", {}, "c7")]


CALL = {name: parser.format("", [("look", {})]) for name, parser in PARSER.items()}


MARKED = [name for name in FORMATS.built_in if name not in ("atem", "inkling")]
"""Formats with marks of their own around thoughts. In frames, the mark behind a thought ends other frames, too."""


@pytest.mark.parametrize("format", MARKED)
def test_thought_is_split_off(format: str) -> None:
    call, (opened, closed) = CALL[format], PARSER[format].thought
    for text, thought, said, calls in [
        (f"{opened}\nhm\n{closed}\n\nYes.\n{call}", "hm", "Yes.", 1),
        (f"hm{closed}Yes.\n{call}", "hm", "Yes.", 1),  # opened by the generation prompt
        (f"{opened}maybe {call}\n{closed}no", f"maybe {call}".strip(), "no", 0),
        (f"or\n{call}\n{closed}no", f"or\n{call}", "no", 0),
        (f"Yes. {opened}", None, f"Yes. {opened}", 0),
        ("Yes.", None, "Yes.", 0),
    ]:
        reply = parse(format, text)
        assert (reply.thought, reply.text, len(reply.calls)) == (thought, said, calls), text
        assert reply.errors == []


def test_a_thoughts_end_inside_of_an_argument_is_no_thought() -> None:
    call = PARSER["hermes"].format("", [("search", {"query": "</think>"})])
    assert parse("hermes", call) == Reply("", calls=[ParsedCall("search", {"query": "</think>"})])


@pytest.mark.parametrize("format", FORMATS.built_in)
def test_answers(format: str) -> None:
    assert parse(format, "So: <answer> Paris </answer>.").answer == "Paris"
    assert parse(format, "<answer>A</answer> no, <answer>B</answer>").answer == "B"
    assert parse(format, "<answer></answer>").answer == ""
    assert parse(format, "<answer>\nx\ny\n</answer>").text == ""
    assert parse(format, "<answer>A</answer>hm".join(PARSER[format].thought)).answer is None
    assert parse(format, "Paris").answer is None
    assert parse(format, "<answer>A</answer> <b>bold</b>").errors == []
    quoted = PARSER[format].format("", [("search", {"query": "<answer>A</answer>"})])
    assert parse(format, quoted).answer is None
    assert parse(format, quoted).calls[0].arguments == {"query": "<answer>A</answer>"}


def test_a_tool_named_answer_goes_before_the_tag() -> None:
    parser = parser_named("tags", [tool("answer", text=STRING)])
    reply = parser.parse("<answer>Paris</answer>", ["answer"])
    assert reply == Reply("", calls=[ParsedCall("answer", {"text": "Paris"})])


@pytest.mark.parametrize("format", FORMATS.built_in)
def test_only_tools_on_offer_can_be_called(format: str) -> None:
    text = PARSER[format].format("", [("search", {"query": "x"})])
    reply = PARSER[format].parse(text, ["look"])
    assert reply.calls == []
    assert (reply.errors != []) == (format != "fenced")  # a block of an unknown language is just code
    assert PARSER[format].parse("just text", []).errors == []


@pytest.mark.parametrize("format", FORMATS.built_in)
def test_instructions_show_every_tool_and_a_call_that_can_be_read(format: str) -> None:
    text = PARSER[format].instructions(TOOLS)
    for name in NAMES:
        assert name in text
        assert f"The {name}." in text
        assert len(parse(format, PARSER[format].example(name)).calls) == 1


def test_signatures() -> None:
    choice = {"type": "string", "enum": ["a", "b"], "description": "Which one."}
    lines = signature_lines([tool("pick", ["which"], which=choice, n={"anyOf": [INTEGER, {"type": "null"}]})])
    assert lines == '- pick(which: "a"|"b", n?: integer): The pick.\n    which: Which one.'


def test_formats_that_cannot_write_an_argument_say_so() -> None:
    for value in ("</parameter>\n</function>", "x</parameter><parameter=y>", None):
        with pytest.raises(ValueError, match="xml cannot express"):
            PARSER["xml"].format("", [("search", {"query": value})])
    for value in ("</parameter>", "</function>", "<function=look>", "<function=look></function>"):
        assert (
            parse("xml", PARSER["xml"].format("", [("search", {"query": value})])).calls[0].arguments["query"] == value
        )


def test_unknown_format_names_the_nearest() -> None:
    with pytest.raises(RecipeError, match="did you mean 'hermes'"):
        parser_named("hermess")
    with pytest.raises(RecipeError, match="take one of: auto, hermes,.*fenced, tags"):
        parser_named("qqqqq")


# Text as models write it: fragments of every format, glued at random.
FRAGMENTS = [
    "<tool_call>", "</tool_call>", "<function=search>", "</function>", "<parameter=query>", "</parameter>", "<search>",
    "</search>", "<look/>", "```python\n", "```tool_call\n", "\n```\n", "````", "<think>", "</think>", "<answer>",
    "</answer>", '{"name": "look"}', '{"name": "search", "arguments": {"query": "x"}}', "{", "}", '"', "\\", "\\ud800",
    "\x00", "<", ">", "=", " ", "\n", "é🙂", "\ud800", "[" * 99, "9" * 50,
]  # fmt: skip
FRAMES = [
    " to=search<|message|>", " to=self<|message|>", "<|eom|>", '<atem:invoke name="search">',
    "</atem:function_calls>", "<|open|>tools<|sep|>", '<|open|>call tool="search" index="1"<|sep|>',
    "<|close|>call<|sep|>", "<|open|>think<|sep|>", "<|message_model|>", "<|content_text|>",
    "<|content_thinking|>", "<|content_invoke_tool_json|>", "<|end_message|>", '<｜DSML｜ invoke name="search">',
    '```json\n{"name": "look", "arguments": {}}',
]  # fmt: skip
"""Marks of the formats whose replies are frames."""
WRITTEN = st.lists(st.sampled_from([*FRAGMENTS, *FRAMES]) | st.text(max_size=5), max_size=25).map("".join)


@pytest.mark.slow
@pytest.mark.family("formats")
@pytest.mark.parametrize("format", FORMATS.built_in)
def test_parsing_never_raises(format: str) -> None:
    parsers = (PARSER[format], parser_named(format))

    @settings(max_examples=EXAMPLES[format], deadline=None)
    @given(WRITTEN, st.lists(st.sampled_from([*NAMES, "answer", "x.*("]), unique=True))
    @example("[" * 10_000, NAMES)
    @example('{"a":' * 10_000, NAMES)
    def check(text: str, names: list[str]) -> None:
        for parser in parsers:
            reply = parser.parse(text, names)
            assert all(call.name in names for call in reply.calls)
            assert all(fault.message for fault in reply.errors)

    check()


@pytest.mark.slow
@pytest.mark.family("formats")
@pytest.mark.parametrize("format", FORMATS.built_in)
@pytest.mark.parametrize(
    "fragment", [*FRAGMENTS, "<a>", "<tool_call>{", "<function ", "``` ", "< ", "<function=a><parameter=b>"]
)
def test_long_hostile_text_is_read_in_linear_time(format: str, fragment: str) -> None:
    assert_linear(format, fragment)


@pytest.mark.slow
@pytest.mark.family("formats")
@pytest.mark.parametrize("format", ["atem", "kimi-k3", "inkling", "deepseek-v4.1", "json-fence"])
@pytest.mark.parametrize("fragment", [*FRAMES, "to=", "```\n{}\n"])
def test_long_hostile_frames_are_read_in_linear_time(format: str, fragment: str) -> None:
    assert_linear(format, fragment)


def assert_linear(format: str, fragment: str) -> None:
    """A quadratic scan takes minutes here, and the test run's time limit ends it."""
    parse(format, fragment * (200_000 // len(fragment)))
    parse(format, fragment + " " * 200_000 + "x")
    parse(format, fragment + "a" * 200_000)


UNICODE = st.text(st.characters(exclude_categories=["Cs"]))
NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | UNICODE,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(UNICODE, inner, max_size=3),
    max_leaves=6,
)
TEXT = UNICODE | WRITTEN.filter(lambda text: "\ud800" not in text)
CALLS = st.one_of(
    st.tuples(st.just("search"), st.fixed_dictionaries({"query": TEXT})),
    st.tuples(st.just("look"), st.just({})),
    st.tuples(st.just("python"), st.fixed_dictionaries({"code": TEXT}, optional={"timeout_s": JSON})),
    st.tuples(st.just("step"), st.fixed_dictionaries({"count": JSON})),
    st.tuples(st.just("buy"), st.fixed_dictionaries({"item": TEXT, "count": JSON, "tags": JSON})),
    st.tuples(st.just("find"), st.fixed_dictionaries({"text": TEXT})),
)


# Formats without quotes cannot write their own tags into an argument, gemma4 not its quote. Harmony writes one call.
CANNOT_WRITE_ALL = {"xml", "seed-oss", "glm-4.5", "minimax", "deepseek-v3.2", "gemma4", "harmony"}


@pytest.mark.slow
@pytest.mark.family("formats")
@pytest.mark.parametrize("format", FORMATS.built_in)
def test_what_is_written_is_read_back(format: str) -> None:
    parser: Parser = PARSER[format]

    @settings(max_examples=EXAMPLES[format], deadline=None)
    @given(st.sampled_from(["", "Let me see."]), st.lists(CALLS, min_size=1, max_size=3))
    def check(text: str, calls: list[tuple[str, dict[str, Any]]]) -> None:
        try:
            written = parser.format(text, calls)
        except ValueError:
            assert format in CANNOT_WRITE_ALL
            return
        reply = parser.parse(written, NAMES)
        assert [(c.name, c.arguments) for c in reply.calls] == calls
        assert reply.errors == []
        assert reply.text == text

    check()


def strings_of_the_formats() -> list[str]:
    """Returns every short string in the source of the formats: among them are all marks that any of them looks for."""
    trees = [ast.parse(file.read_text(encoding="utf-8")) for file in Path(formats.__path__[0]).glob("*.py")]
    constants = (node.value for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return sorted({value for value in constants if isinstance(value, str) and len(value) <= 40 and value.isprintable()})


@pytest.mark.slow
@pytest.mark.family("formats")
@pytest.mark.parametrize("format", FORMATS.built_in)
def test_marks_of_every_format_are_read_back_from_an_argument(format: str) -> None:
    """Random texts meet the marks of another format seldom: here each is an argument once."""
    refused = []
    for mark in strings_of_the_formats():
        try:
            written = PARSER[format].format("", [("search", {"query": mark})])
        except ValueError:
            refused.append(mark)
            continue
        reply = parse(format, written)
        assert ([(c.name, c.arguments) for c in reply.calls], reply.errors) == ([("search", {"query": mark})], [])
    assert refused == {"gemma4": ['<|"|>']}.get(format, [])
