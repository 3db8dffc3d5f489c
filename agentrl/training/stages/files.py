"""Conversations and preferences in JSONL files, in the formats of TRL and of fine-tuning APIs; and raw texts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from agentrl.chat.formats.native_calls import answers, ids_of, in_call_order, read_arguments, rounds
from agentrl.chat.formats.parser import Parser
from agentrl.registry.references import is_reference, load_object
from agentrl.training.supervised.conversation import Said, SupervisedConversation
from agentrl.training.supervised.raw_text import RawText
from agentrl.types import values
from agentrl.types.errors import TaskError
from agentrl.types.jsonl import JsonRow, read_rows
from agentrl.types.parts import schemas
from agentrl.types.task import Message

Labelled = tuple[SupervisedConversation, float]
"""A conversation, and its label: 1 for a good one, 0 for a bad one."""

_KEYS = ("role", "content", "name", "tool_calls", "tool_call_id", "weight")
_FORMS = {
    "sft": '{"messages": [...]}, or {"prompt": ..., "completion": ...}',
    "preference": '{"prompt": ..., "chosen": ..., "rejected": ...}, or {"prompt": ..., "completion": ..., "label": '
    "true | false} for the loss kto",
}


def conversations(path: Path, parser: Parser, key: str) -> list[SupervisedConversation]:
    """The conversations of a file of `messages`, or `prompt` and `completion`.

    Args:
        parser: writes tool calls in the policy's format.
        key: the recipe's key that names the file.

    Raises:
        TaskError: a row is wrong (with file and line), or the file has no row.
    """
    return _all(path, key, lambda row: [_conversation(row, parser)])


def preferences(path: Path, parser: Parser, key: str, *, paired: bool, gold: bool = False) -> list[Labelled]:
    """The labelled conversations of a file: two per row with `chosen` and `rejected`, one per row with `label`.

    Args:
        paired: refuse rows with `label`.
        gold: rows have a third reply, `gold`, which gets label 2.

    Raises:
        TaskError: as `conversations`.
    """
    return _all(path, key, lambda row: _preferences(row, parser, paired, gold))


def raw_texts(source: str, base: Path, length: int | None, key: str) -> list[RawText]:
    """The documents of a file of `text`, or those that a function yields.

    Args:
        source: a JSONL file, or `./file.py:function`, relative to `base`.
        length: maximum number of tokens of a piece.
        key: the recipe's key that names the source.

    Raises:
        TaskError: a row or a value is no text (with its place), or there is none.
    """
    found = []
    for number, place, text in _texts(source, base, key):
        if not isinstance(text, str) or not text.strip():
            raise TaskError(f"the text is {text!r:.60}", place=place, remedy='give {"text": "..."}, or a string')
        found.append(RawText(f"{Path(source.partition(':')[0]).stem}:{number}", text, place, length))
    if not found:
        raise TaskError(f"{source} has no text", place=key)
    return found


def _texts(source: str, base: Path, key: str) -> Iterator[tuple[int, str, Any]]:
    """Number, place and text of each document."""
    if is_reference(source):
        code = load_object(source, base)
        texts = code() if callable(code) else code
        if isinstance(texts, str) or not isinstance(texts, Iterable):
            raise TaskError(f"{source} gives {texts!r:.60}", place=key, remedy="a function that yields strings")
        for number, text in enumerate(texts, 1):
            yield number, f"{key}: {source}, text {number}", text
    else:
        for row in read_rows((base / source).resolve(), key):
            yield row.number, row.place, row.data.get("text")


def _all(path: Path, key: str, of: Callable[[JsonRow], Sequence[Any]]) -> list[Any]:
    found = [each for row in read_rows(path, key) for each in of(row)]
    if not found:
        raise TaskError(f"{path} has no row", place=key)
    return found


def _conversation(row: JsonRow, parser: Parser) -> SupervisedConversation:
    data = row.data
    if "messages" in data:
        messages = _messages(data["messages"], row, "messages")
    elif {"prompt", "completion"} <= data.keys():
        messages = _prompt(data["prompt"], row) + _reply(data["completion"], row, "completion")
    else:
        raise _other_form(row, "sft")
    return _turns(messages, row, parser)


def _preferences(row: JsonRow, parser: Parser, paired: bool, gold: bool) -> list[Labelled]:
    data = row.data
    if gold:
        if not {"prompt", "gold", "chosen", "rejected"} <= data.keys():
            raise TaskError(
                f"the row has {', '.join(data) or 'no key'}, and the loss compares three replies",
                place=row.place,
                remedy="give prompt, gold, chosen and rejected; or use another preference.loss",
            )
        messages = _prompt(data["prompt"], row) + _reply(data["gold"], row, "gold")
        pair = _pair(row, parser)
        best = _turns(messages, row, parser, "gold", learned_from=len(_prompt(data["prompt"], row)))
        return [(best, 2.0), *pair]
    if {"chosen", "rejected"} <= data.keys():
        return _pair(row, parser)
    if not {"prompt", "completion", "label"} <= data.keys():
        raise _other_form(row, "preference")
    if paired:
        raise TaskError(
            "the row has a label, but the loss compares a chosen reply with a rejected one",
            place=row.place,
            remedy="use preference.loss: kto, or rows with prompt, chosen and rejected",
        )
    if not isinstance(data["label"], bool):
        raise TaskError(f"label is {data['label']!r}", place=row.place, remedy="true or false")
    messages = _prompt(data["prompt"], row) + _reply(data["completion"], row, "completion")
    return [(_turns(messages, row, parser), float(data["label"]))]


def _pair(row: JsonRow, parser: Parser) -> list[Labelled]:
    sides = {name: _reply(row.data[name], row, name) for name in ("chosen", "rejected")}
    if sides["chosen"] == sides["rejected"]:
        raise TaskError("chosen and rejected are the same", place=row.place)
    if "prompt" in row.data:
        prompt = _prompt(row.data["prompt"], row)
    else:  # the common beginning of both
        both = list(zip(*sides.values(), strict=False))
        prompt = [message for message, _ in takewhile(lambda pair: pair[0] == pair[1], both)]
        sides = {name: messages[len(prompt) :] for name, messages in sides.items()}
    for name, other in (("chosen", "rejected"), ("rejected", "chosen")):
        if not sides[name]:
            remedy = "give each its own reply after the common beginning, or give the prompt"
            raise TaskError(f"{name} is the beginning of {other}", place=row.place, remedy=remedy)
    given = [_turns(prompt + own, row, parser, name, learned_from=len(prompt)) for name, own in sides.items()]
    return [(given[0], 1.0), (given[1], 0.0)]


def _other_form(row: JsonRow, kind: str) -> TaskError:
    return TaskError(f"the row has {', '.join(row.data) or 'no key'}", place=row.place, remedy=f"give {_FORMS[kind]}")


def _prompt(value: Any, row: JsonRow) -> list[Message]:
    """Messages. A string becomes a user message."""
    return [{"role": "user", "content": value}] if isinstance(value, str) else _messages(value, row, "prompt")


def _reply(value: Any, row: JsonRow, key: str) -> list[Message]:
    """Messages. A string becomes an assistant message."""
    return [{"role": "assistant", "content": value}] if isinstance(value, str) else _messages(value, row, key)


def _messages(value: Any, row: JsonRow, key: str) -> list[Message]:
    if row.data.get("tools"):
        remedy = "remove the key and name the tools in the recipe: the policy sees their descriptions"
        raise TaskError("the row defines its own tools", place=row.place, remedy=remedy)
    if not isinstance(value, list) or not value:
        raise TaskError(f"{key} is {value!r:.60}", place=row.place, remedy="a list of messages: {role, content}")
    return [_message(each, row, f"{key}[{index}]") for index, each in enumerate(value)]


def _message(value: Any, row: JsonRow, where: str) -> Message:
    if not isinstance(value, dict) or not isinstance(value.get("role"), str):
        raise TaskError(f"{where} is {value!r:.60}", place=row.place, remedy="a message: {role, content}")
    if strangers := [key for key, item in value.items() if key not in _KEYS and item not in (None, [], {}, "")]:
        remedy = f"a message has {', '.join(_KEYS)}; reasoning is part of the content, as the model writes it"
        raise TaskError(f"{where} has {', '.join(strangers)}, which would be lost", place=row.place, remedy=remedy)
    if value.get("weight") not in (None, 0, 1):
        raise TaskError(f"{where} has weight {value['weight']!r}", place=row.place, remedy="1: learned; 0: context")
    try:
        return {**value, "content": _content(value.get("content"))}
    except ValueError as error:
        raise TaskError(f"{where}: {error}", place=row.place, remedy="text only") from None


def _content(value: Any) -> str:
    """The text of a message's content, which may be a list of parts."""
    if isinstance(value, list):
        return "".join(_part(part) for part in value)
    return values.text(value)


def _part(part: Any) -> str:
    if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
        raise ValueError(f"a part of the content is {part!r:.60}")
    return str(part["text"])


def _turns(
    messages: Sequence[Message], row: JsonRow, parser: Parser, side: str = "", learned_from: int = 0
) -> SupervisedConversation:
    """The conversation of the messages.

    Args:
        side: side of a pair, chosen or rejected.
        learned_from: index of the first message after the prompt. Replies before it are not learned.
    """
    messages = _answered(messages, row)
    starts = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    if not starts or starts[0] == 0:
        why = "the assistant has no message" if not starts else "the first message is the assistant's"
        raise TaskError(why, place=row.place, remedy="give a prompt, then a reply")
    turns: list[Said] = []
    for start, end in zip(starts, [*starts[1:], len(messages)], strict=True):
        if end == start + 1 < len(messages):
            raise TaskError(
                f"messages {start} and {end} are both the assistant's",
                place=row.place,
                remedy="write them as one message, or add the message between them",
            )
        learned = start >= learned_from and messages[start].get("weight") != 0
        turns.append(Said(_text(messages[start], row, parser), messages[start + 1 : end], learned))
    if not any(turn.trains for turn in turns):
        why = "every reply has weight 0" if starts[-1] >= learned_from else f"{side} has no reply after the prompt"
        raise TaskError(f"{why}: there is nothing to learn", place=row.place)
    group = f"{Path(row.place.rpartition(':')[0]).stem}:{row.number}"
    opening = [_plain(message) for message in messages[: starts[0]]]
    own = f"{group}/{side}" if side else group
    plain = [Said(turn.text, [_plain(each) for each in turn.observations], turn.trains) for turn in turns]
    return SupervisedConversation(own, group, opening, plain, row.place)


def _answered(messages: Sequence[Message], row: JsonRow) -> list[Message]:
    """The messages, the results of a reply in the order of its calls.

    Raises:
        TaskError: results and calls that name each other do not fit.
    """
    for reply, following in rounds(messages):
        ids = ids_of(reply)
        results, others = answers(ids, following)
        stray = next((m["tool_call_id"] for m in others if m["role"] == "tool" and m.get("tool_call_id")), None)
        missing = next((id for id, result in zip(ids, results, strict=True) if result is None), None)
        why = ""
        if ids and stray is not None:
            why = f"a result names the call {stray!r}; the calls before it are {', '.join(map(repr, ids))}"
        elif any(results) and missing is not None:
            why = f"the call {missing!r} has no result, and another of the same message has one"
        if why:
            raise TaskError(why, place=row.place, remedy="give every call one result, with its tool_call_id")
    return in_call_order(messages)


def _plain(message: Message) -> Message:
    return {key: item for key, item in message.items() if key != "weight" and item is not None}


def _text(message: Message, row: JsonRow, parser: Parser) -> str:
    """The text of a reply, with tool calls in the recipe's format."""
    calls = message.get("tool_calls") or []
    try:
        written = [_call(call, parser) for call in calls]
        return parser.format(message["content"], written) if written else str(message["content"])
    except (ValueError, KeyError, TypeError) as error:
        raise TaskError(
            f"a tool call cannot be written in the format {parser.name}: {error}",
            place=row.place,
            remedy='{"function": {"name": ..., "arguments": {...}}}, or write the call into the content',
        ) from None


def _call(call: Any, parser: Parser) -> tuple[str, Mapping[str, Any]]:
    function = call["function"]
    if parser.functions and function["name"] not in parser.functions:
        raise ValueError(f"the recipe's tools have no {function['name']!r}, but {', '.join(parser.functions)}")
    given = read_arguments(function["arguments"])
    known = schemas.arguments(parser.functions.get(function["name"], {}).get("parameters"))
    # A table has one column for the arguments of all tools, and fills it with nulls.
    return str(function["name"]), {k: v for k, v in given.items() if v is not None or not known or k in known}
