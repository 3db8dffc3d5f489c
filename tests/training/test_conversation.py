"""A conversation as text becomes the sample that trains its replies."""

from __future__ import annotations

from agentrl.chat.recognise import parser_for
from agentrl.chat.renderer import Renderer
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
