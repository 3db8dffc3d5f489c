"""Prompts that open the thought: its mark belongs to the reply, wherever a rewrite or the template puts it."""

from __future__ import annotations

import pytest

from agentrl.chat.formats.registry import parser_named
from agentrl.chat.renderer import History, Renderer
from agentrl.chat.thread import Thread
from agentrl.types.engine import Completion
from agentrl.types.task import Message
from agentrl.types.trajectory import Trajectory
from tests.chat.templates import tokenizer_of

OPENING = (
    "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n<think>\\n' }}{%- endif %}"
)
SAID = "I think.\n</think>\n\nYes."
HI: Message = {"role": "user", "content": "Hi."}


def renderer_of(history: History) -> Renderer:
    tokenizer = tokenizer_of("smollm2")
    tokenizer.hf.chat_template = OPENING
    return Renderer(tokenizer, parser_named("hermes"), [], history=history)


def told(renderer: Renderer, turns: int, text: str = SAID) -> Thread:
    thread = Thread(Trajectory())
    thread.add([HI])
    for _ in range(turns):
        prompt = thread.prompt(renderer)
        assert renderer.opening_of(prompt.tokens) == "<think>\n"
        ids = [*renderer.tokenizer.encode(text, False), renderer.stop_token_ids[0]]
        said = Completion(token_ids=ids, logprobs=[0.0] * len(ids), finish="stop", versions=[])
        thread.reply(prompt, said, text, opened=renderer.opening_of(prompt.tokens))
        thread.add([{"role": "user", "content": "More."}])
    return thread


@pytest.mark.parametrize("text", [SAID, "I think, and was cut"])
def test_a_rewrite_that_keeps_a_reply_keeps_the_thought_that_its_prompt_opened(text: str) -> None:
    renderer = renderer_of("as_sampled")
    thread = told(renderer, 2, text)
    thread.restart([HI, {"role": "user", "content": "A summary."}, *thread.messages[-2:]])
    shown = renderer.tokenizer.decode(thread.prompt(renderer).tokens)
    assert f"assistant\n<think>\n{text}<|im_end|>" in shown
    thread.restart([HI, {"role": "assistant", "content": "Just words."}, HI])
    assert "assistant\nJust words.<|im_end|>" in renderer.tokenizer.decode(thread.prompt(renderer).tokens)


def test_a_reply_that_a_rewrite_cut_keeps_it_too() -> None:
    renderer = renderer_of("as_sampled")
    thread = told(renderer, 1)
    cut = thread.messages[1] | {"content": SAID.removesuffix("Yes.")}
    thread.restart([HI, cut, HI])
    assert f"<think>\n{cut['content']}<|im_end|>" in renderer.tokenizer.decode(thread.prompt(renderer).tokens)


def test_as_template_puts_it_back_as_the_prompt_had_it() -> None:
    renderer = renderer_of("as_template")
    thread = told(renderer, 3)
    prompt = thread.prompt(renderer)
    assert (prompt.drift, prompt.branched_at) == (None, None)
    assert renderer.tokenizer.decode(prompt.tokens).count(f"assistant\n<think>\n{SAID}<|im_end|>") == 3
