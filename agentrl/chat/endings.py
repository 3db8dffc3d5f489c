"""Properties of a chat template: the way it shows results of tools, and the ends of its replies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from agentrl.chat.formats.parser import Parser
from agentrl.chat.recognise import called_message
from agentrl.chat.samples import PROBE, REPLY, STAND_IN, USER, result
from agentrl.chat.tokenizer import CALL_ENDS, Tokenizer, control_pattern
from agentrl.types.errors import RenderError
from agentrl.types.task import Message


class Close(NamedTuple):
    """End of a reply.

    Attributes:
        end: the control token.
        text: everything that the template writes behind a reply, up to and including it.
    """

    end: str
    text: str


def passes(tokenizer: Tokenizer, messages: list[Message]) -> bool:
    """Returns True if the template renders a conversation, and shows its text."""
    try:
        return PROBE in tokenizer.render(messages, None, True)
    except RenderError:
        return False


def how_results_go(tokenizer: Tokenizer) -> tuple[str, bool]:
    """Returns the way to show a tool's result, and whether ids of nine characters are required (by Mistral's).

    `plain`: after any reply; `calls`: only after a reply with calls in the template's own form (Mistral's count the
    others as turns, which must alternate with those of the user); "": not at all.
    """
    for how in ("plain", "calls"):
        for long_ids in (False, True):
            reply = REPLY if how == "plain" else called_message("probe", long_ids)
            if passes(tokenizer, [USER, reply, result(PROBE, long_ids), REPLY, USER]):
                return how, long_ids
    return "", False


def closes_of(tokenizer: Tokenizer, scaffold: str, results: tuple[str, bool]) -> list[Close]:
    """Returns the ends of a reply before a user message, and before a result if that differs.

    GLM ends a reply with the token of the next role.

    Raises:
        RenderError: a reply ends with text.
    """
    tails = [scaffold.partition(STAND_IN)[2]]
    if results[0] == "plain":
        answered = tokenizer.render([USER, REPLY, result(PROBE, results[1])], None, True)
        tails.append(answered.partition(STAND_IN)[2])
    controls, closes = control_pattern(tokenizer.controls), []
    for tail in tails:
        if controls is None or (found := controls.search(tail)) is None:
            raise RenderError(
                "the chat template ends a reply with text, not with a control token: sampling would not know when "
                f"to stop (after a reply comes {tail[:40]!r})",
                place=tokenizer.name,
                remedy="model.template: a template whose replies end with the tokenizer's eos token",
            )
        closes.append(Close(found[0], tail[: found.end()]))
    return list(dict.fromkeys(closes))


def call_close_of(
    tokenizer: Tokenizer, results: tuple[str, bool], own_ends: tuple[str, str] | None, closes: Sequence[Close]
) -> Close | None:
    """Returns the end of a reply with calls, if results follow only such replies."""
    if results[0] != "calls":
        return None
    messages = [USER, called_message("probe", results[1]), result(PROBE, results[1])]
    tail = tokenizer.render(messages, None, True).partition(STAND_IN)[2]
    controls = tokenizer.controls.keys()
    known = {text for text in controls if tokenizer.controls[text] in tokenizer.stop_ids}
    ends = control_pattern(own_ends[1:] if own_ends else {*known, *CALL_ENDS, closes[0].end} & controls)
    if ends is None or (found := ends.search(tail)) is None:
        return None
    return Close(found[0], found[0])


def stops_of(
    tokenizer: Tokenizer,
    parser: Parser,
    own_ends: tuple[str, str] | None,
    closes: Sequence[Close],
    call_close: Close | None,
) -> tuple[int, ...]:
    """Returns the tokens that end an assistant turn, first the one that the template writes.

    Raises:
        RenderError: the template and the parser have different formats.
    """
    controls, ends = tokenizer.controls, own_ends
    if ends is None:
        if "<|call|>" in controls and "<|return|>" in controls:
            raise RenderError(
                f"the chat template speaks harmony, and the calls are read as {parser.name}",
                place=tokenizer.name,
                remedy="agent.format: harmony (or auto)",
            )
        own = [close.end for close in (*closes, *([call_close] if call_close else []))]
        return tuple(dict.fromkeys([*(controls[text] for text in own), *tokenizer.stop_ids]))
    inner = controls[closes[0].end]  # ends a message of a reply, not the reply
    return tuple(dict.fromkeys([*(controls[text] for text in ends), *tokenizer.stop_ids]) - {inner: None}.keys())
