"""A conversation whose messages are replaced: what is known of a message goes with it."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from agentrl.chat.formats.registry import parser_named
from agentrl.chat.renderer import Renderer
from agentrl.chat.thread import Thread
from agentrl.chat.tokenizer import ByteTokenizer
from agentrl.types.engine import Completion
from agentrl.types.task import Message
from agentrl.types.trajectory import Trajectory

RENDERER = Renderer(ByteTokenizer(), parser_named("hermes", []), [])


def begun() -> Thread:
    """Two replies to prompts that opened a thought."""
    thread = Thread(Trajectory())
    thread.restart([{"role": "user", "content": "Go."}])
    for number in (1, 2):
        prompt, text = thread.prompt(RENDERER), f"plan {number}</think>act"
        ids = [*text.encode(), 257]
        said = Completion(token_ids=ids, logprobs=[0.0] * len(ids), finish="stop", versions=[])
        thread.reply(prompt, said, text, opened="<think>")
        thread.add([{"role": "user", "content": f"result {number}"}])
    return thread


def without_the_first(messages: list[Message]) -> list[Message]:
    return [messages[0], *messages[3:]]


def copies(messages: list[Message]) -> list[Message]:
    return copy.deepcopy(without_the_first(messages))


def turned(messages: list[Message]) -> list[Message]:
    return [messages[0], messages[3], messages[1]]


@pytest.mark.parametrize(("edit", "kept"), [(without_the_first, [0, 3, 4]), (copies, [0, 3, 4]), (turned, [0, 3, 1])])
def test_what_stays_is_the_same_message_with_its_open_thought(edit: Any, kept: list[int]) -> None:
    thread = begun()
    before, new = [*thread.messages], edit(thread.messages)
    thread.restart(copy.deepcopy(new), of=new)
    assert [message is before[k] for message, k in zip(thread.messages, kept, strict=True)] == [True] * len(kept)
    prompt = RENDERER.tokenizer.decode(thread.prompt(RENDERER).tokens)
    assert all(f"<think>plan {(k + 1) // 2}</think>act" in prompt for k in kept if k in (1, 3))


def test_a_reply_that_was_written_anew_has_no_open_thought() -> None:
    thread = begun()
    new = [*thread.messages[:3], {"role": "assistant", "content": "So."}]
    new[1]["content"] = "Short."  # in place
    thread.restart(copy.deepcopy(new), of=new)
    prompt = RENDERER.tokenizer.decode(thread.prompt(RENDERER).tokens)
    assert "Short." in prompt
    assert "<think>" not in prompt


def test_one_message_is_not_two() -> None:
    thread = begun()
    first = thread.messages[1]
    thread.restart([dict(first), dict(first)], of=[first, first])
    assert thread.messages[0] is first
    assert thread.messages[1] is not first
    assert thread.messages[1] == first
