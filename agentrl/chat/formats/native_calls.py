"""Calls and results in the form of APIs: arguments as text, and results with the id of their call."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

from agentrl.chat.formats.parser import ParsedCall, ParseFault, Parser, Reply, arguments_of, read_json
from agentrl.types.engine import NativeCall
from agentrl.types.errors import RenderError
from agentrl.types.parts.content import text_of
from agentrl.types.task import Message

NO_RESULT = "No result of this call is shown."
"""Replaces the missing result of a call in the conversation."""


def read_arguments(given: Any) -> dict[str, Any]:
    """Reads the arguments of a call: JSON text, an object, or nothing, which APIs send for a call without arguments.

    Raises:
        ValueError: they are not JSON, or not an object.
    """
    if given is None or given == "":
        return {}
    return arguments_of(read_json(given) if isinstance(given, str) else given)


def calls_of(message: Message) -> list[NativeCall]:
    """Returns the calls of a message. Their arguments are JSON text, as in APIs, or the object.

    Raises:
        ValueError: they are not a list, or one of them has no name.
    """
    given = message.get("tool_calls") or []
    if not isinstance(given, list):
        raise ValueError("'tool_calls' of a message must be a list")
    return [_native(call) for call in given]


def _native(call: Any) -> NativeCall:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise ValueError("a tool call of the conversation has no function with a name")
    given = function.get("arguments")
    written = given if isinstance(given, str) else "" if given is None else json.dumps(given, ensure_ascii=False)
    return NativeCall(str(call.get("id") or ""), function["name"], written)


def told(messages: Sequence[Message], parser: Parser, as_keys: bool) -> list[Message]:
    """Converts a conversation for the chat template: calls of earlier replies become part of their text, in the format
    of the parser, or are under a key, if the template shows results of such calls only.

    Args:
        as_keys: whether calls are under a key.

    Raises:
        RenderError: a call cannot be read.
    """
    made: list[Message] = []
    for index, message in enumerate(messages):
        try:
            made.append(_told(message, parser, as_keys) if message["role"] == "assistant" else message)
        except ValueError as error:
            raise RenderError(
                str(error),
                place=f"message {index} (assistant)",
                remedy='{"id": ..., "function": {"name": ..., "arguments": {...}}}, or write the call into the content',
            ) from None
    return made


def _told(message: Message, parser: Parser, as_keys: bool) -> Message:
    calls, content = calls_of(message), message["content"]
    plain = {key: value for key, value in message.items() if key != "tool_calls"}
    if not as_keys:
        return {**plain, "content": as_text(parser, text_of(content), calls)} if calls else plain
    if calls:
        return {**message, "tool_calls": [_as_key(call, k) for k, call in enumerate(calls)]}
    return {**plain, **parser.message(content)} if isinstance(content, str) else plain


def _as_key(call: NativeCall, index: int) -> dict[str, Any]:
    """Returns a call for a key. Arguments that cannot be read remain text."""
    try:
        arguments: Any = read_arguments(call.arguments)
    except ValueError:
        arguments = call.arguments
    function = {"name": call.name, "arguments": arguments}
    return {"id": call.id or f"call_{index}", "type": "function", "function": function}


def as_text(parser: Parser, text: str, calls: Sequence[NativeCall]) -> str:
    """Writes a reply in the format of the parser. A call that the format cannot express is written in its original
    form.
    """
    written = []
    for call in calls:
        try:
            one = call.name, read_arguments(call.arguments)
            parser.format("", [one])
            written.append(one)
        except ValueError:
            text += f'\n<tool_call>\n{{"name": "{call.name}", "arguments": {call.arguments}}}'
    return parser.format(text, written) if written else text


def with_long_ids(message: Message) -> Message:
    """Replaces the ids of a result, or of a reply's calls under its key, by ids of nine letters and digits, as
    Mistral's templates require.
    """
    if message["role"] == "tool":
        return {**message, "tool_call_id": _long_id(str(message.get("tool_call_id", "")))}
    return {
        **message,
        "tool_calls": [{**call, "id": _long_id(str(call.get("id", "")))} for call in message["tool_calls"]],
    }


def _long_id(call_id: str) -> str:
    plain = re.sub(r"[^A-Za-z0-9]", "", call_id)
    return plain[-9:].rjust(9, "0")


def reply_of(parser: Parser, text: str, calls: Sequence[NativeCall], tools: Collection[str]) -> Reply:
    """Parses the reply of an API that returned calls apart from the text: these follow those of the text.

    Each call, and each fault, has the API's id: APIs require a result for every one. Other faults of the text are
    ignored.

    Args:
        tools: names of the tools that may be called now; a call of any other is a fault.
    """
    said = parser.parse(text, tools)
    behind = max((each.at for each in said.calls), default=0) + 1
    read = [replace(_read(parser, call, tools), at=behind + k) for k, call in enumerate(calls)]
    return replace(
        said,
        calls=[*said.calls, *(each for each in read if isinstance(each, ParsedCall))],
        errors=[each for each in read if isinstance(each, ParseFault)],
    )


def _read(parser: Parser, call: NativeCall, tools: Collection[str]) -> ParsedCall | ParseFault:
    try:
        arguments = read_arguments(call.arguments)
    except ValueError as error:
        return ParseFault(call.arguments[:120], f"the tool call cannot be read: {error}", id=call.id)
    if call.name not in tools:
        return replace(parser._unknown(call.name, call.arguments, tools), id=call.id)
    return ParsedCall(call.name, arguments, call.id)


def rounds(messages: Sequence[Message]) -> Iterator[tuple[Message | None, list[Message]]]:
    """Yields the replies of a conversation, each with the messages after it; first None with the opening messages."""
    reply: Message | None = None
    following: list[Message] = []
    for message in messages:
        if message.get("role") == "assistant":
            yield reply, following
            reply, following = message, []
        else:
            following.append(message)
    yield reply, following


def ids_of(reply: Message | None) -> list[str]:
    """Returns the ids of the calls of a reply in the form of APIs; none if one of its calls has none."""
    calls = (reply or {}).get("tool_calls") or ()
    ids = [id for call in calls if isinstance(call, dict) and isinstance(id := call.get("id"), str) and id]
    return ids if len(ids) == len(calls) else []


def answers(ids: Sequence[str], following: Sequence[Message]) -> tuple[list[Message | None], list[Message]]:
    """Returns the result of each call, by its id, and the other messages.

    Of calls with the same id, the first has the first result of that id.
    """
    found: dict[str, list[Message]] = {id: [] for id in ids}
    wanted, others = Counter(ids), []
    for message in following:
        results = found.get(str(message.get("tool_call_id"))) if message.get("role") == "tool" else None
        if results is not None and len(results) < wanted[str(message["tool_call_id"])]:
            results.append(message)
        else:
            others.append(message)
    waiting = {id: iter(results) for id, results in found.items()}
    return [next(waiting[id], None) for id in ids], others


def in_call_order(messages: Sequence[Message]) -> list[Message]:
    """Returns a conversation in which the results of a reply follow it in the order of its calls.

    Most chat templates show no ids: there only the order assigns results to calls. If some calls of a reply have a
    result, the others get `NO_RESULT`.
    """
    ordered: list[Message] = []
    for reply, following in rounds(messages):
        ids = ids_of(reply)
        results, others = answers(ids, following)
        if reply is not None:
            ordered.append(reply)
        if any(results):
            pairs = zip(ids, results, strict=True)
            ordered += [result or {"role": "tool", "tool_call_id": id, "content": NO_RESULT} for id, result in pairs]
        ordered += others
    return ordered
