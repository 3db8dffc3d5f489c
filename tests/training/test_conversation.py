"""A conversation as text becomes the sample that trains its replies."""

from __future__ import annotations

from agentrl.chat.recognise import parser_for
from agentrl.chat.renderer import Renderer
from agentrl.chat.tokenizer import ByteTokenizer
from agentrl.config.agent import FormatSettings
from agentrl.training.supervised.conversation import Said, SupervisedConversation
from tests.chat.families import gemma4_thinking

LOOK = {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": {}}}


def test_replies_behind_results_are_trained_outside_the_thought_that_the_prompt_opens() -> None:
    """Gemma 4's template opens one behind results."""
    tokenizer, call = gemma4_thinking(), "<|tool_call>call:look{}<tool_call|>"
    renderer = Renderer(tokenizer, parser_for(FormatSettings(), tokenizer, [LOOK]), [LOOK])
    seen = [{"role": "tool", "name": "look", "content": "room 7"}]
    turns = [Said(call, seen), Said("Seven.", [])]
    sample = SupervisedConversation("e", "g", [{"role": "user", "content": "Where?"}], turns).samples(renderer)[0]
    trained = [tokenizer.decode(sample.token_ids[begin:end].tolist()) for _, begin, end in sample.turn_spans]
    assert trained == [f"{call}<|tool_response>", "\n<channel|>\n\nSeven.<turn|>"]


def test_a_turn_with_another_text_is_the_last_of_its_context_and_trains_alone() -> None:
    tokenizer = ByteTokenizer()
    renderer = Renderer(tokenizer, parser_for(FormatSettings(use="tags"), tokenizer, []), [])
    go = [{"role": "user", "content": "Go on."}]
    ask = [{"role": "user", "content": "Is it right?"}]
    turns = [
        Said("one", go),
        Said("no", [], trains=False, opening=ask, context="critic"),
        Said("two", go),
        Said("x", []),
    ]
    talk = SupervisedConversation("e", "g", [{"role": "user", "content": "Count."}], turns).ending(2, "TWO")
    assert [(each.text, each.trains, each.context) for each in talk.turns] == [
        ("one", False, "main"), ("TWO", True, "main"),
    ]  # fmt: skip
    (sample,) = talk.samples(renderer)
    trained = tokenizer.decode([token for token, on in zip(sample.token_ids, sample.loss_mask, strict=True) if on])
    assert trained.startswith("TWO")
    assert "one" not in trained
