"""Thoughts: calls in them are never run, wherever they stand; and a reply of nothing else is told."""

from __future__ import annotations

import pytest

from agentrl.chat.formats.parser import ParsedCall
from agentrl.chat.formats.registry import FORMATS
from agentrl.chat.recognise import parser_for
from agentrl.chat.renderer import Renderer
from agentrl.config.agent import FormatSettings
from tests.chat.families import tokenizer_of
from tests.chat.test_parsers import CALL, MARKED, PARSER, parse

LOOK = [ParsedCall("look", {})]


@pytest.mark.parametrize("format", MARKED)
def test_a_call_in_a_later_thought_is_no_call(format: str) -> None:
    call, (opened, closed) = CALL[format] + "<|tools_suffix|>" * (format == "apertus"), PARSER[format].thought
    for text, calls, said in [
        (f"{opened}one{closed}Well.{opened}I could\n{call}\nbut no{closed}No.", [], "Well.\nNo."),
        (f"Well. {opened}I could\n{call}\nbut no{closed}No.", [], "Well. \nNo."),
        (f"one{closed}Well.{opened}\n{call}\n{closed}No.", [], "Well.\nNo."),
        (f"{opened}a{closed}{opened}{closed}{opened}\n{call}\n{closed}\n{call}", ["look"], ""),
        (f"Yes.\n{call}\n{opened}or\n{call}\n{closed}", ["look"], "Yes."),
    ]:
        reply = parse(format, text)
        assert [each.name for each in reply.calls if each.name == "look"] == calls, text
        assert (len(reply.calls), reply.errors, reply.text) == (len(calls), [], said), text


@pytest.mark.parametrize("format", MARKED)
def test_a_later_thought_that_is_never_closed_is_told_if_it_calls(format: str) -> None:
    call, (opened, _) = CALL[format], PARSER[format].thought
    reply = parse(format, f"Well. {opened}I could\n{call}")
    assert reply.calls == []
    assert "is never closed" in reply.errors[0].message
    assert parse(format, f"Well. {opened}I could.").errors == []


@pytest.mark.parametrize("format", ["hermes", "xml", "mistral", "pythonic", "glm-4.5"])
def test_a_broken_call_in_a_thought_takes_nothing_with_it(format: str) -> None:
    call, written = CALL[format], PARSER[format].format("", [("search", {"query": "xyz"})])
    broken = written[: written.index("yz")]
    for text in (
        f"<think>{broken}</think>\n{call}",
        f"Well.<think>{broken}</think>\n{call}",
        f"{broken}</think>\n{call}",
    ):
        reply = parse(format, text)
        assert (reply.calls, reply.errors) == (LOOK, []), text


def test_marks_in_an_argument_are_no_thought() -> None:
    for query in ("<think>a</think>", "a</think>b", "<think>"):
        for format in ("hermes", "xml", "glm-4.5", "minimax", "mistral"):
            written = PARSER[format].format("So.", [("search", {"query": query}), ("look", {})])
            reply = parse(format, written)
            assert [call.arguments for call in reply.calls] == [{"query": query}, {}]
            assert (reply.thought, reply.errors) == (None, [])


def test_thoughts_are_joined() -> None:
    reply = parse("hermes", "<think>a</think>Yes.<think>b</think>")
    assert (reply.thought, reply.text) == ("a\nb", "Yes.")


@pytest.mark.parametrize("format", MARKED)
def test_a_reply_of_thoughts_alone_is_told(format: str) -> None:
    opened, closed = PARSER[format].thought
    for text in (f"{opened}I could\n{CALL[format]}\n{closed}", f"hm{closed}\n", f"{opened}a{closed}{opened}b{closed}"):
        reply = parse(format, text)
        assert reply.calls == []
        assert "the reply ends with your thoughts" in reply.errors[0].message
    assert parse(format, f"{opened}{closed}").errors == []


@pytest.mark.parametrize(
    ("format", "thought"),
    [
        ("atem", " to=self<|message|>hm<|eom|>"),
        ("atem", " to=self<|message|>hm<|eom|><|start|>assistant to=self<|message|>hm<|eom|>"),
        ("inkling", "<|message_model|><|content_thinking|>hm<|end_message|><|content_model_end_sampling|>"),
    ],
)
def test_frames_of_thoughts_alone_are_told(format: str, thought: str) -> None:
    reply = parse(format, thought)
    assert reply.calls == []
    assert "the reply ends with your thoughts" in reply.errors[0].message


def test_many_thoughts_are_read_in_linear_time() -> None:
    """A quadratic scan takes minutes here, and the test run's time limit ends it."""
    for text in ("<think></think>", "<think>a</think>b\n<tool_call>", "<think><tool_call>{</think>", "a<think>"):
        for format in ("hermes", "xml", "glm-4.5"):
            parse(format, text * (100_000 // len(text)))


@pytest.mark.parametrize("format", FORMATS.built_in)
def test_a_thought_that_is_written_is_read_back(format: str) -> None:
    reply = parse(format, PARSER[format].thinking("I must look.", PARSER[format].format("", [("look", {})])))
    assert (reply.thought, [call.name for call in reply.calls], reply.errors) == ("I must look.", ["look"], [])
    reply = parse(format, PARSER[format].thinking("Easy.", "Four."))
    assert (reply.thought, reply.text, reply.calls) == ("Easy.", "Four.", [])


@pytest.mark.parametrize("family", ["qwen3", "glm4moe", "nemotron_3_nano", "gemma4_v5", "muse_glimmer"])
def test_a_thought_is_written_as_the_template_writes_it(family: str) -> None:
    tokenizer = tokenizer_of(family)
    renderer = Renderer(tokenizer, parser_for(FormatSettings(), tokenizer, []), [])
    said = renderer.parser.thinking("Easy.", "Four.")
    messages = [
        {"role": "user", "content": "2 + 2?"},
        {"role": "assistant", "content": "Four.", "reasoning_content": "Easy.", "reasoning": "Easy."},
    ]
    assert said in tokenizer.render(messages, None, False)


@pytest.mark.parametrize("family", ["muse_glimmer", "inkling", "gptoss"])
def test_a_reply_in_frames_of_its_own_gets_no_other(family: str) -> None:
    tokenizer = tokenizer_of(family)
    renderer = Renderer(tokenizer, parser_for(FormatSettings(), tokenizer, []), [])
    prompt = renderer.start([{"role": "user", "content": "2 + 2?"}])
    call = renderer.parser.format("", [("look", {})])
    for reply in (call, renderer.parser.thinking("Easy.", call), renderer.parser.thinking("Easy.", "Four.")):
        assert tokenizer.decode(renderer.demonstrate(reply, prompt)).startswith(reply)
