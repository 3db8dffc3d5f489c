"""Recognises the call format of a chat template: lets the template write a call, and parses it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from agentrl.chat.formats.parser import Parser
from agentrl.chat.formats.registry import AUTO, FORMATS, parser_of, prepared
from agentrl.chat.samples import PROBE, REPLY, STAND_IN, USER
from agentrl.chat.tokenizer import Tokenizer
from agentrl.registry.registry import PlugInSection
from agentrl.types.errors import RenderError
from agentrl.types.task import Message

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "probe",
        "description": "A probe.",
        "parameters": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
    },
}


def called_message(name: str, long_ids: bool, *, as_text: bool = False, argument: str = STAND_IN) -> Message:
    """Returns a reply with a call in the form that templates take.

    Args:
        as_text: arguments as JSON text, for older templates of DeepSeek.
    """
    arguments: Any = {"text": argument}
    function = {"name": name, "arguments": json.dumps(arguments) if as_text else arguments}
    call = {"id": "call00000" if long_ids else "call_0", "type": "function", "function": function}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def parser_for(
    format: PlugInSection, tokenizer: Tokenizer, definitions: Sequence[Mapping[str, Any]], base: Path | None = None
) -> Parser:
    """Returns the parser of a recipe's `agent.format` for the template of a model.

    Args:
        base: folder of the recipe.

    Raises:
        RecipeError: the format does not exist, or cannot call one of the tools.
    """
    if format.use == AUTO:
        return prepared(recognised(tokenizer)(definitions))
    return parser_of(format, definitions, base)


def recognised(tokenizer: Tokenizer) -> type[Parser]:
    """Returns the format in which the template writes calls or teaches them; hermes if it does neither."""
    written = written_format(tokenizer)
    if written is not None:
        return written
    try:
        taught, plain = (tokenizer.render([USER], tools, True) for tools in ([TOOL], None))
    except RenderError:
        taught = plain = ""
    natives = (cls for cls in FORMATS.all().values() if cls.native is not None and cls.native.search(taught))
    hermes = FORMATS.find("hermes")
    return next(natives, hermes) if taught != plain else hermes


def writes_calls_of(tokenizer: Tokenizer, cls: type[Parser]) -> bool:
    """Returns True if the template writes calls in the format of this class."""
    return written_format(tokenizer) is cls


def written_format(tokenizer: Tokenizer) -> type[Parser] | None:
    """Returns the format in which the template writes calls; None if it writes none or an unknown one."""
    for as_text in (False, True):
        message = called_message("probe", True, as_text=as_text)
        try:
            text = tokenizer.render([USER, message], [TOOL], False)
        except RenderError:
            continue
        if (found := _format_of(text.rpartition(str(USER["content"]))[2])) is not None:
            return found
    return None


def writes_unknown_calls(tokenizer: Tokenizer, parser: Parser) -> bool:
    """Returns True if the template writes calls that neither the parser nor any known format reads."""
    if written_format(tokenizer) is not None:
        return False
    for as_text in (False, True):
        try:
            text = tokenizer.render([USER, called_message("probe", True, as_text=as_text)], [TOOL], False)
        except RenderError:
            continue
        written = text.rpartition(str(USER["content"]))[2]
        if "probe" in written and STAND_IN in written:
            return not parser.parse(written, ["probe"]).calls
    return False


def around_thoughts(tokenizer: Tokenizer, parser: Parser) -> tuple[str, str] | None:
    """Returns the text that the template writes before the reasoning of the last reply, from the mark on, and between
    it and the content; None if it shows none in the parser's marks.
    """
    opened, closed = parser.thought
    for key in ("reasoning_content", "reasoning"):
        try:
            text = tokenizer.render([USER, {**REPLY, key: PROBE}], None, False)
        except RenderError:
            continue
        before, _, behind = text.partition(PROBE)
        between, said, _ = behind.partition(STAND_IN)
        mark = before.rfind(opened)
        if said and mark >= 0 and before[mark:].strip() == opened and between.strip() == closed:
            return before[mark:], between
    return None


@cache
def _format_of(text: str) -> type[Parser] | None:
    for cls in FORMATS.all().values():
        if cls.mark is not None and not cls.mark.search(text):
            continue
        calls = prepared(cls([TOOL])).parse(text, ["probe"]).calls
        if [(call.name, call.arguments) for call in calls] == [("probe", {"text": STAND_IN})]:
            return cls
    return None
