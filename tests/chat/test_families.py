"""The chat templates that models come with: recognised, proved at load time, continued turn by turn, parsed back."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agentrl.chat.formats.parser import Parser
from agentrl.chat.formats.registry import prepared
from agentrl.chat.proof import check
from agentrl.chat.recognise import parser_for, recognised
from agentrl.chat.renderer import Renderer
from agentrl.chat.samples import REPLY
from agentrl.chat.template import SHIPPED, arguments_of, template_text, with_arguments
from agentrl.chat.tokenizer import HFTokenizer
from agentrl.config.agent import FormatSettings
from agentrl.types.errors import RecipeError, RenderError
from agentrl.types.task import Message
from tests.chat.families import (
    APERTUS_END,
    FAMILIES,
    REFUSED,
    gemma4_thinking,
    small,
    template_of,
    tokenizer_of,
)

pytest.importorskip("trl")
SEARCH: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Search the catalogue.",
        "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
    },
}
SYSTEM: Message = {"role": "system", "content": "Be brief."}
USER: Message = {"role": "user", "content": "Where is it?"}


def renderer_of(tokenizer: HFTokenizer, format: str = "auto") -> Renderer:
    renderer = Renderer(tokenizer, parser_for(FormatSettings(use=format), tokenizer, [SEARCH]), [SEARCH])
    check(renderer)
    return renderer


def result(text: str, call_id: str = "call_0") -> Message:
    return {"role": "tool", "name": "search", "tool_call_id": call_id, "content": text}


def said(renderer: Renderer, text: str) -> list[int]:
    """A reply to the user."""
    return renderer.demonstrate(text, renderer.start([USER]))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_format_is_recognised(family: str) -> None:
    assert recognised(tokenizer_of(family)).name == FAMILIES[family]


@pytest.mark.parametrize("family", FAMILIES)
def test_calls_and_answers_go_through_the_template(family: str) -> None:
    """What a model samples is parsed, ended and followed by the result, whatever the family."""
    tokenizer = tokenizer_of(family)
    renderer = renderer_of(tokenizer)
    controls = {token: text for text, token in tokenizer.controls.items()}
    ids = renderer.start([SYSTEM, USER])
    shown = tokenizer.decode(ids)
    assert shown.count("Search the catalogue.") == 1
    assert shown.count("Be brief.") == 1

    call = renderer.demonstrate(renderer.parser.format("", [("search", {"query": "a b"})]), ids)
    assert call[-1] in renderer.stop_token_ids
    assert not set(call[:-1]) & set(renderer.stop_token_ids), [controls[t] for t in call if t in controls]
    _, reply = renderer.read(ids, call, ["search"])
    assert [(c.name, c.arguments) for c in reply.calls] == [("search", {"query": "a b"})]
    after = tokenizer.decode(renderer.extend(call, [result("room 7")]))
    assert after.count("room 7") == 1

    answer = renderer.demonstrate("Paris it is.", ids)
    _, reply = renderer.read(ids, answer, ["search"])
    assert (reply.text, reply.calls, reply.errors) == ("Paris it is.", [], [])
    again = renderer.extend(answer, [{"role": "user", "content": "Sure?"}])
    assert tokenizer.decode(again).count("Sure?") == 1
    assert tokenizer.decode(again).count(controls[answer[-1]]) <= 1  # the end that was sampled is not written again


@pytest.mark.parametrize("family", FAMILIES)
def test_a_reply_that_is_cut_is_closed_as_the_template_does(family: str) -> None:
    renderer = renderer_of(tokenizer_of(family))
    new = [{"role": "user", "content": "Shorter."}]
    whole = renderer.tokenizer.render([USER, {"role": "assistant", "content": "It is"}, *new], None, True)
    begun = renderer.begin("It is", renderer.start([USER]))
    assert whole.endswith(renderer.tokenizer.decode(renderer.extend(begun, new)))


@pytest.mark.parametrize("family", REFUSED)
def test_what_cannot_be_continued_is_refused_and_the_shipped_template_works(family: str) -> None:
    with pytest.raises(RenderError, match=r"not append-only: message 5 \(tool\).*\n.*deepseek-v3"):
        renderer_of(tokenizer_of(family))
    text = template_text("deepseek-v3")
    tokenizer = small(text + "{#<think></think>#}", REFUSED[family], "deepseek")
    renderer = renderer_of(tokenizer)
    assert renderer.parser.name == "deepseek-v3"
    call = said(renderer, renderer.parser.format("", [("search", {"query": "x"})]))
    assert tokenizer.decode(renderer.extend(call, [result("a"), result("b")])) == (
        "<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>a<｜tool▁output▁end｜>\n"
        "<｜tool▁output▁begin｜>b<｜tool▁output▁end｜><｜tool▁outputs▁end｜>"
    )


def test_apertus_goes_on_with_its_reply_behind_results() -> None:
    with pytest.raises(RenderError, match=r"drops or changes a reply\n.*apertus"):
        renderer_of(small(template_of("apertus"), APERTUS_END, "apertus"))
    renderer = renderer_of(small(template_text("apertus"), APERTUS_END, "apertus-shipped"))
    decode = renderer.tokenizer.decode
    assert renderer.parser.name == "apertus"
    assert "type search = (_: {\nquery: string\n}) => any;<|developer_end|>" in decode(renderer.start([SYSTEM, USER]))
    call = said(renderer, renderer.parser.format("I look.", [("search", {"query": "x"})]))
    assert decode(call) == 'I look.\n<|tools_prefix|>[{"search": {"query": "x"}}]<|tools_suffix|>'
    assert decode(renderer.extend(call, [result("a"), result("b", "call_1")])) == "[a, b]"
    after = decode(renderer.extend(said(renderer, "It is."), [USER]))
    assert after == "<|user_start|>Where is it?<|user_end|><|assistant_start|>"


UNKNOWN = """{%- for m in messages %}
{{- '<|im_start|>' + m.role + '\n' + m.content }}
{%- for c in m.tool_calls or [] %}{{- '@@' + c.function.name + '@' + c.function.arguments | string }}{%- endfor %}
{{- '<|im_end|>\n' }}{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"""


def test_a_template_whose_calls_nobody_reads_says_so_in_a_line() -> None:
    renderer = renderer_of(small(UNKNOWN, "<|im_end|>", "unknown"))
    assert renderer.parser.name == "hermes"
    assert [note.split(":")[0] for note in renderer.notes] == [
        "the chat template writes tool calls in a form that no format reads"
    ]


def test_a_template_that_drops_thoughts_says_so_in_a_line() -> None:
    (note,) = renderer_of(tokenizer_of("qwen3")).notes
    assert "drops the thoughts" in note
    assert "\n" not in note
    assert renderer_of(tokenizer_of("qwen3_instruct_2507")).notes == []


def test_what_was_sampled_stays_as_it_was_sampled() -> None:
    """Qwen3's template drops thoughts of earlier turns; the continuation neither knows nor changes them."""
    renderer = renderer_of(tokenizer_of("qwen3"))
    ids = renderer.start([USER])
    thought = renderer.demonstrate("<think>\nEasy.\n</think>\n\nIn room 7.", ids)
    more = renderer.extend(thought, [{"role": "user", "content": "Sure?"}])
    assert renderer.tokenizer.decode([*ids, *thought, *more]).endswith(
        "<think>\nEasy.\n</think>\n\nIn room 7.<|im_end|>\n<|im_start|>user\nSure?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_glm_ends_a_reply_with_the_next_role() -> None:
    renderer = renderer_of(tokenizer_of("glm4moe"))
    controls = renderer.tokenizer.controls
    assert {controls["<|user|>"], controls["<|observation|>"]} <= set(renderer.stop_token_ids)
    call = said(renderer, renderer.parser.format("", [("search", {"query": "x"})]))
    assert call[-1] == controls["<|observation|>"]
    assert renderer.tokenizer.decode(renderer.extend(call, [result("a")])).startswith("\n<tool_response>\na")
    answer = said(renderer, "Paris")
    assert answer[-1] == controls["<|user|>"]
    assert renderer.tokenizer.decode(renderer.extend(answer, [USER])).startswith("\nWhere is it?")


class TestHarmony:
    def test_channels_calls_and_results(self) -> None:
        renderer = renderer_of(tokenizer_of("gptoss"))
        tokenizer, controls = renderer.tokenizer, renderer.tokenizer.controls
        assert set(renderer.stop_token_ids) == {controls["<|return|>"], controls["<|call|>"]}
        sampled = (
            "<|channel|>analysis<|message|>I search.<|end|><|start|>assistant<|channel|>commentary to=functions.search "
            '<|constrain|>json<|message|>{"query": "x"}<|call|>'
        )
        ids = tokenizer.encode(sampled, special=True)
        assert [token for token in ids if token in renderer.stop_token_ids] == ids[-1:]
        assert tokenizer.decode(renderer.extend(ids, [result("room 7")])) == (
            '<|start|>functions.search to=assistant<|channel|>commentary<|message|>"room 7"<|end|><|start|>assistant'
        )

    def test_a_fault_of_a_reply_that_called_nothing_comes_from_the_user(self) -> None:
        renderer = renderer_of(tokenizer_of("gptoss"))
        ids = renderer.tokenizer.encode("<|channel|>analysis<|message|>Hm.<|return|>", special=True)
        shown = renderer.tokenizer.decode(renderer.extend(ids, [result("Error: go on")]))
        assert shown.startswith("<|end|><|start|>user<|message|><tool_response>\nError: go on")

    def test_another_format_on_its_template_is_refused(self) -> None:
        with pytest.raises(RenderError, match=r"speaks harmony, and the calls are read as hermes\n.*harmony"):
            renderer_of(tokenizer_of("gptoss"), "hermes")

    def test_an_earlier_conversation_is_rendered_by_its_keys(self) -> None:
        renderer = renderer_of(tokenizer_of("gptoss"))
        said = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Room 7."
        shown = renderer.tokenizer.decode(renderer.start([USER, {"role": "assistant", "content": said}, USER]))
        assert "<|start|>assistant<|channel|>final<|message|>Room 7.<|end|><|start|>user" in shown


class TestGemma4:
    CALL = '<|tool_call>call:search{query:<|"|>x<|"|>}<tool_call|>'

    def test_calls_are_written_and_answered_as_its_template_does(self) -> None:
        renderer = renderer_of(tokenizer_of("gemma4_v5"))
        tokenizer = renderer.tokenizer
        call = said(renderer, renderer.parser.format("", [("search", {"query": "x"})]))
        assert tokenizer.decode(call) == f"{self.CALL}<|tool_response>"
        assert "<|tool>declaration:search{" in tokenizer.decode(renderer.start([USER]))
        answered = '<|tool_response>response:search{value:<|"|>room 7<|"|>}<tool_response|>'
        assert tokenizer.decode([*call, *renderer.extend(call, [result("room 7")])]) == f"{self.CALL}{answered}"

    def test_a_thought_that_is_opened_behind_results_belongs_to_the_reply(self) -> None:
        renderer = renderer_of(gemma4_thinking())
        start = renderer.start([USER])
        assert renderer.opened_by(start) == ""
        call = renderer.demonstrate(renderer.parser.format("", [("search", {"query": "x"})]), start)
        prompt = [*start, *call, *renderer.extend(call, [result("room 7")])]
        assert renderer.opened_by(prompt) == "<|channel>thought"

    def test_what_is_demonstrated_behind_results_closes_the_thought_first(self) -> None:
        renderer = renderer_of(gemma4_thinking())
        start, decode = renderer.start([USER]), renderer.tokenizer.decode
        call = renderer.demonstrate(self.CALL, start)
        assert decode(call) == f"{self.CALL}<|tool_response>"
        prompt = [*start, *call, *renderer.extend(call, [result("room 7")])]
        again = renderer.demonstrate(self.CALL, prompt)
        assert decode(again) == f"\n<channel|>\n\n{self.CALL}<|tool_response>"
        assert [call.name for call in renderer.read(prompt, again, ["search"])[1].calls] == ["search"]
        assert decode(renderer.begin("It is", prompt)) == "\n<channel|>\n\nIt is"
        thought = renderer.demonstrate("<|channel>thought\nHm.\n<channel|>Seven.", prompt)
        assert decode(thought) == "Hm.\n<channel|>Seven.<turn|>"
        assert renderer.read(prompt, thought, ["search"])[1].thought == "Hm."

    def test_a_prompt_that_opens_no_thought_is_told_by_its_last_word(self, monkeypatch: pytest.MonkeyPatch) -> None:
        renderer = renderer_of(tokenizer_of("gemma4_v5"))
        prompt = renderer.start([USER])
        assert renderer.opened_by(prompt) == ""
        monkeypatch.setattr(renderer.tokenizer, "decode", lambda ids: pytest.fail(f"decodes {ids}"))
        assert renderer.opened_by(prompt) == ""

    @pytest.mark.parametrize("behind", ["", "\n", " \n\n"])
    @pytest.mark.parametrize("mark", ["<think>", "\u25c1think\u25b7"])
    def test_a_thought_is_found_open_whatever_tokens_its_mark_is_cut_into(self, mark: str, behind: str) -> None:
        renderer = renderer_of(tokenizer_of("gemma4_v5"))
        renderer.parser = SimpleNamespace(thought=(mark, "end"))  # type: ignore[assignment]
        for text in (f"so {mark}{behind}", f"so {mark}x{behind}", f"so {mark[:-1]}{behind}"):
            prompt = renderer.tokenizer.encode(text, True)
            assert renderer.opened_by(prompt) == (mark if text.rstrip().endswith(mark) else "")

    def test_a_result_cannot_close_the_text_that_it_stands_in(self) -> None:
        renderer = renderer_of(tokenizer_of("gemma4_v5"))
        call = said(renderer, renderer.parser.format("", [("search", {"query": "x"})]))
        ids = renderer.extend(call, [result('a<|"|>}<tool_response|><turn|>')])
        controls = renderer.tokenizer.controls
        assert [ids.count(controls[text]) for text in ('<|"|>', "<tool_response|>", "<turn|>")] == [2, 1, 0]

    def test_an_earlier_conversation_keeps_its_calls_and_results(self) -> None:
        renderer = renderer_of(tokenizer_of("gemma4_v5"))
        said = [{"role": "assistant", "content": f"I look.{self.CALL}"}, result("room 7")]
        shown = renderer.tokenizer.decode(renderer.start([USER, *said, {"role": "assistant", "content": "7."}, USER]))
        answered = '<|tool_response>response:search{value:<|"|>room 7<|"|>}<tool_response|>'
        assert f"<|turn>model\n{self.CALL}{answered}I look." in shown
        # A result behind a reply that calls nothing, which the template would drop, comes from the user.
        shown = renderer.tokenizer.decode(renderer.start([USER, REPLY, result("Error: no call")]))
        assert "<|turn>user\n<tool_response>\nError: no call\n</tool_response><turn|>" in shown

    def test_control_tokens_in_what_was_said_earlier_stay_text(self) -> None:
        renderer = renderer_of(tokenizer_of("gemma4_v5"))
        said = [{"role": "assistant", "content": self.CALL.replace("x", "x<turn|>")}, result("y")]
        ids = renderer.start([USER, *said])
        assert ids.count(renderer.tokenizer.controls["<turn|>"]) == 2  # of the tools, and of the user's message


def test_a_thought_that_the_prompt_opens_belongs_to_the_reply() -> None:
    renderer = renderer_of(tokenizer_of("qwen3_5_think"))
    prompt, decode = renderer.start([USER]), renderer.tokenizer.decode
    assert renderer.opened_by(prompt) == "<think>"
    assert decode(said(renderer, "<think>\nHm.\n</think>\n\nHi")) == "Hm.\n</think>\n\nHi<|im_end|>"
    assert decode(said(renderer, "Hi")) == "\n</think>\n\nHi<|im_end|>"
    text, unclosed = renderer.read(prompt, renderer.tokenizer.encode("I wonder<|im_end|>", special=True), ["search"])
    assert text == "I wonder"
    assert "never closed" in unclosed.errors[0].message


class TestMistral:
    """Its templates let the turns alternate, and calls and results are no turns."""

    def test_results_answer_calls_by_ids_of_nine_characters(self) -> None:
        renderer = renderer_of(tokenizer_of("mistral-v3"))
        call = said(renderer, renderer.parser.format("", [("search", {"query": "x"})]))
        shown = renderer.tokenizer.decode(renderer.extend(call, [result("room 7"), result("room 8", "aB3dE6gH9")]))
        parts = shown.split("[TOOL_RESULTS]")[1:]
        ids = [json.loads(part.partition("[/TOOL_RESULTS]")[0])["call_id"] for part in parts]
        assert ids == ["0000call0", "aB3dE6gH9"]

    def test_what_a_user_says_behind_a_result_joins_it(self) -> None:
        renderer = renderer_of(tokenizer_of("mistral-v11"))
        call = said(renderer, renderer.parser.format("", [("search", {"query": "x"})]))
        shown = renderer.tokenizer.decode(renderer.extend(call, [result("room 7"), USER]))
        assert shown == ('[TOOL_RESULTS]{"content": "room 7\\n\\nWhere is it?", "call_id": "0000call0"}[/TOOL_RESULTS]')

    def test_an_earlier_conversation_keeps_its_calls(self) -> None:
        renderer = renderer_of(tokenizer_of("mistral-v11"))
        said = [{"role": "assistant", "content": '[TOOL_CALLS]search[ARGS]{"query": "x"}'}, result("room 7")]
        shown = renderer.tokenizer.decode(renderer.start([USER, *said, REPLY, USER]))
        assert '[TOOL_CALLS]search[ARGS]{"query": "x"}</s>[TOOL_RESULTS]' in shown

    def test_tools_that_the_template_moves_are_described_in_the_system_message(self) -> None:
        renderer = renderer_of(tokenizer_of("mistral-v3"))
        assert any("in the system message instead" in note for note in renderer.notes)
        assert renderer.tokenizer.decode(renderer.start([USER])).count("Search the catalogue.") == 1

    def test_a_system_message_that_the_template_moves_becomes_part_of_the_users_first(self) -> None:
        moving = template_of("mistral-v3").replace(
            "loop.first and system is defined", "loop.last and system is defined"
        )
        renderer = renderer_of(small(moving, "</s>", "moving"))
        assert any("part of the user's first" in note for note in renderer.notes)
        shown = renderer.tokenizer.decode(renderer.start([SYSTEM, USER]))
        assert "[INST]Be brief." in shown
        assert shown.endswith("Where is it?[/INST]")


class TestCohere:
    def test_what_is_said_stands_between_marks_and_calls_end_with_the_turn(self) -> None:
        renderer = renderer_of(tokenizer_of("command-r7b"))
        tokenizer, parse = renderer.tokenizer, renderer.parser.parse
        said = "<|START_RESPONSE|>Paris<|END_RESPONSE|>"
        assert parse(said, ["search"]).text == "Paris"
        assert parse(f"<|START_THINKING|>Hm.<|END_THINKING|>{said}", ["search"]).thought == "Hm."
        written = '<|START_ACTION|>[{"tool_name": "search", "parameters": {"query": "x"}}]<|END_ACTION|>'
        (call,) = parse(written, ["search"]).calls
        assert call.arguments == {"query": "x"}
        # The turn's end is not written twice, whether a reply has an end of its own before it or not.
        for sampled in (f"{written}<|END_OF_TURN_TOKEN|>", said):
            shown = sampled + tokenizer.decode(
                renderer.extend(tokenizer.encode(sampled, special=True), [result("room 7")])
            )
            assert shown.count("<|END_OF_TURN_TOKEN|>") == 2  # of the reply, and of the result
            assert shown.count("<|END_RESPONSE|>") == sampled.count("<|END_RESPONSE|>")


def test_the_message_that_differs_is_named() -> None:
    plain = template_text("chatml")
    odd = "('LATE ' if loop.index > 4 and message.role == 'user' else '') + message.content +"
    late = plain.replace("message.content +", odd)
    tool = late.replace("'user'", "'tool'")
    prompt = plain.replace("assistant\\n' }}", "assistant\\n' + ('!' if messages | length > 4 else '') }}")
    wrong = {"the generation prompt": prompt, r"message \d+ \(user\)": late, r"message 5 \(tool\)": tool}
    for where, text in wrong.items():
        with pytest.raises(RenderError, match=f"not append-only: {where} of a test conversation"):
            renderer_of(small(text + "{#<|im_start|>#}", "<|im_end|>", "odd"))


class TestArguments:
    def test_they_reach_the_template_and_its_macros(self) -> None:
        settled = with_arguments(template_of("qwen3"), {"enable_thinking": False})
        renderer = renderer_of(small(settled, "<|im_end|>", "qwen3-nothink"))
        assert renderer.tokenizer.decode(renderer.start([USER])).endswith("assistant\n<think>\n\n</think>\n\n")
        oss = small(with_arguments(template_of("gptoss"), {"reasoning_effort": "low"}), "<|return|>", "oss-low")
        assert "Reasoning: low" in oss.render([USER], None, True)

    def test_values_of_every_kind(self) -> None:
        text = "{{ a }}|{{ b }}|{{ c }}|{{ d }}|{{ e }}"
        values = {"a": None, "b": True, "c": 'it\'s "x"\n', "d": [1, "y"], "e": {"k": 2.5}}
        tokenizer = small(with_arguments(text, values), "</s>", "values")
        assert tokenizer.render([USER], None, True) == "None|True|it's \"x\"\n|[1, 'y']|{'k': 2.5}"

    def test_one_that_the_template_does_not_read_is_refused(self) -> None:
        assert arguments_of(template_of("qwen3")) == {"enable_thinking"}
        with pytest.raises(RecipeError, match=r"does not read 'enable_thinkin'\n.*did you mean 'enable_thinking'"):
            with_arguments(template_of("qwen3"), {"enable_thinkin": False})
        with pytest.raises(RecipeError, match=r"does not read 'x'\n.*it reads: none"):
            with_arguments(template_text("chatml"), {"x": 1})

    def test_what_is_no_template_is_refused_with_the_line(self) -> None:
        with pytest.raises(RecipeError, match="model.template: line 2: .*no Jinja template"):
            with_arguments("x\n{% if %}", {})


def test_template_names_and_files(tmp_path: Path) -> None:
    assert set(SHIPPED) == {"apertus", "chatml", "deepseek-v3", "llava"}
    mine = tmp_path / "mine.jinja"
    mine.write_text("{{ messages }}")
    assert template_text(str(mine)) == "{{ messages }}"
    with pytest.raises(RecipeError, match=r"no chat template 'chatlm'\n.*did you mean 'chatml'"):
        template_text("chatlm")
    with pytest.raises(RecipeError, match=r"model.template: .*none.jinja cannot be read: No such file"):
        template_text(str(tmp_path / "none.jinja"))
    mine.write_bytes(b"\xff\xfe")
    with pytest.raises(RecipeError, match="it is no text"):
        template_text(str(mine))
    mine.write_text("\n")
    with pytest.raises(RecipeError, match="is empty"):
        template_text(str(mine))


def test_a_parser_class_of_ones_own_is_taken_as_it_is() -> None:
    class Mine(Parser):
        name = "mine"

        def format(self, text: str, calls: Any) -> str:
            return text + "".join(f"!{name}" for name, _ in calls)

        def _find(self, text: str, tools: Any) -> Any:
            return iter(())

    renderer = Renderer(tokenizer_of("qwen3"), prepared(Mine([SEARCH])), [SEARCH])
    check(renderer)
    assert "!search" in renderer.tokenizer.decode(renderer.start([USER]))
