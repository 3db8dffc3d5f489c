"""Conversations and preferences in rows of files and data sets, in the forms of TRL, of APIs, of ShareGPT and of ATIF;
and raw texts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from agentrl.chat import atif
from agentrl.chat.foreign import ITEMS, ROLES, SYSTEM_KEYS, chat_messages, from_json, tool_definitions, with_system
from agentrl.chat.formats.native_calls import answers, ids_of, in_call_order, read_arguments, rounds
from agentrl.chat.formats.parser import Parser
from agentrl.curriculum.tables import Row, RowSource, inside, rows_of
from agentrl.registry.references import is_reference, load_object
from agentrl.training.supervised.conversation import Said, SupervisedConversation
from agentrl.training.supervised.raw_text import RawText
from agentrl.types import values
from agentrl.types.errors import TaskError
from agentrl.types.jsonl import read_rows
from agentrl.types.parts import schemas
from agentrl.types.task import Message

_log = logging.getLogger(__name__)

Labelled = tuple[SupervisedConversation, float]
"""A conversation, and its label: 1 for a good one, 0 for a bad one."""

_KEYS = ("role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content", "weight")
_FORMS = {
    "sft": '{"messages": [...]}, {"conversations": [...]}, {"prompt": ..., "completion": ...}, or a trajectory of '
    "ATIF; sft.messages names another field (responses_create_params.input), or several that are one conversation "
    "([request.messages, response.choices.0.message], or texts: [instruction, input, output])",
    "preference": '{"prompt": ..., "chosen": ..., "rejected": ...}, or {"prompt": ..., "completion": ..., "label": '
    "true | false} for the loss kto",
}


class _Told(NamedTuple):
    """A row that is read, and how its replies are written.

    Attributes:
        parser: of the row's tools.
        tools: the row's tools; None: those of the recipe.
    """

    row: Row
    parser: Parser
    tools: list[dict[str, Any]] | None

    @property
    def data(self) -> dict[str, Any]:
        return self.row.data


def conversations(
    source: RowSource, base: Path, parser: Parser, messages: str | Sequence[str] | None = None, tools: str | None = None
) -> list[SupervisedConversation]:
    """The conversations of rows of `messages` or `conversations`, of `prompt` and `completion`, or of ATIF.

    Args:
        base: folder of the recipe.
        parser: writes tool calls in the policy's format.
        messages, tools: the rows' fields, dots lead inside; default: the usual ones. Messages of several fields are
            one conversation.

    Raises:
        TaskError: a row is wrong (with file and row), or there is none.
        MissingExtra: the package that reads the source is not installed.
    """

    def read(row: Row) -> list[SupervisedConversation]:
        if messages is None and atif.is_trajectory(row.data):
            talk = atif.talk_of(row.data)
            told = _told(row, parser, talk.tools)
            return [unread.counted(_turns(_checked(talk.messages, "steps"), told), told)]
        told = _told(row, parser, _tools(row, tools, source.section))
        return [unread.counted(_turns(_conversation(told, messages, source.section), told), told)]

    unread = _Unread()
    found = _all(source, base, read)
    unread.report(parser.name)
    return found


def preferences(
    source: RowSource, base: Path, parser: Parser, tools: str | None = None, *, paired: bool, gold: bool = False
) -> list[Labelled]:
    """The labelled conversations of rows: two per row with `chosen` and `rejected`, one per row with `label`.

    Args:
        paired: refuse rows with `label`.
        gold: rows have a third reply, `gold`, which gets label 2.

    Raises:
        TaskError, MissingExtra: as `conversations`.
    """

    def read(row: Row) -> list[Labelled]:
        return _preferences(_told(row, parser, _tools(row, tools, source.section)), paired, gold)

    return _all(source, base, read)


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


def _all(source: RowSource, base: Path, read: Callable[[Row], Sequence[Any]]) -> list[Any]:
    found: list[Any] = []
    for row in rows_of(source, base):
        try:
            found += read(row)
        except TaskError as error:
            raise TaskError(error.message, place=row.place, remedy=error.remedy) from None
    if not found:
        raise TaskError(f"{source.name} has no row", place=source.key)
    return found


def _tools(row: Row, path: str | None, section: str) -> list[dict[str, Any]] | None:
    """The tools of a row; None if it names none."""
    if path is not None:
        return tool_definitions(inside(row.data, path, f"{section}.tools"), path) or None
    key = next((key for key in ("tools", "functions") if row.data.get(key)), "tools")  # functions: the API's first name
    return tool_definitions(row.data.get(key), key) or None


def _told(row: Row, parser: Parser, tools: list[dict[str, Any]] | None) -> _Told:
    if tools is None:
        return _Told(row, parser, None)
    own = parser.for_tools(tools)
    for name in own.functions:
        try:
            own.example(name)
        except ValueError as error:
            raise TaskError(f"the tool {name!r} cannot be called in the format {own.name}: {error}") from None
    return _Told(row, own, tools)


def _conversation(told: _Told, path: str | Sequence[str] | None, section: str) -> list[Message]:
    data = told.data
    if isinstance(path, str):
        return with_system(_messages(inside(data, path, f"{section}.messages"), path), data, path)
    if path is not None:
        parts = _parts(path, [inside(data, each, f"{section}.messages") for each in path])
        return with_system(_messages([item for part in parts for item in part], " + ".join(path)), data, path[0])
    if key := next((key for key in ("messages", "conversations") if key in data), None):
        return with_system(_messages(data[key], key), data)
    if {"prompt", "completion"} <= data.keys():
        return with_system(_prompt(data) + _reply(data["completion"], "completion"), data)
    raise _other_form(data, "sft")


def _parts(path: Sequence[str], fields: Sequence[Any]) -> list[list[Any]]:
    """The items of several fields that hold one conversation. Of texts, the last is the assistant's and those before it
    are the user's: Alpaca's `[instruction, input, output]`. A first text in a field `system` is the system message.

    Args:
        path: names of the fields.
    """
    system: list[list[Any]] = []
    if len(fields) > 2 and path[0].rpartition(".")[2] in SYSTEM_KEYS and _is_prose(fields[0]):
        system, fields = [[{"role": "system", "content": fields[0]}]], fields[1:]
    if len(fields) > 2 and _is_prose(fields[-1]) and all(each is None or _is_prose(each) for each in fields):
        fields = ["\n\n".join(each for each in fields[:-1] if each and each.strip()), fields[-1]]
    given = [each if _is_prose(each) else from_json(each) for each in fields]
    return system + [_items(value, "user" if index == 0 else "assistant") for index, value in enumerate(given)]


def _is_prose(value: Any) -> bool:
    """Returns True for a text that is not a message or a list of messages in JSON."""
    if not isinstance(value, str):
        return False
    read = from_json(value)
    items = read if isinstance(read, list) else [read]
    return read != [] and not all(isinstance(each, Mapping) and _is_message(each) for each in items)


def _is_message(item: Mapping[str, Any]) -> bool:
    if "role" in item:
        return not {"content", "parts", "tool_calls"}.isdisjoint(item)
    kind = item.get("type")
    return {"from", "value"} <= item.keys() or (isinstance(kind, str) and kind in ITEMS)


def _items(value: Any, role: str) -> list[Any]:
    if isinstance(value, str):
        return [{"role": role, "content": value}]
    return value if isinstance(value, list) else [value]


def _preferences(told: _Told, paired: bool, gold: bool) -> list[Labelled]:
    data = told.data
    if gold:
        if not {"prompt", "gold", "chosen", "rejected"} <= data.keys():
            raise TaskError(
                f"the row has {', '.join(data) or 'no key'}, and the loss compares three replies",
                remedy="give prompt, gold, chosen and rejected; or use another preference.loss",
            )
        prompt = with_system(_prompt(data), data)
        best = _turns(prompt + _reply(data["gold"], "gold"), told, "gold", learned_from=len(prompt))
        return [(best, 2.0), *_pair(told)]
    if {"chosen", "rejected"} <= data.keys():
        return _pair(told)
    if not {"prompt", "completion", "label"} <= data.keys():
        raise _other_form(data, "preference")
    if paired:
        raise TaskError(
            "the row has a label, but the loss compares a chosen reply with a rejected one",
            remedy="use preference.loss: kto, or rows with prompt, chosen and rejected",
        )
    if not isinstance(data["label"], bool):
        raise TaskError(f"label is {data['label']!r}", remedy="true or false")
    messages = with_system(_prompt(data) + _reply(data["completion"], "completion"), data)
    return [(_turns(messages, told), float(data["label"]))]


def _pair(told: _Told) -> list[Labelled]:
    data = told.data
    sides = {name: _reply(data[name], name) for name in ("chosen", "rejected")}
    if sides["chosen"] == sides["rejected"]:
        raise TaskError("chosen and rejected are the same")
    prompt = _prompt(data) if "prompt" in data or "conversations" in data else []
    if not prompt or all(messages[: len(prompt)] == prompt for messages in sides.values()):
        # The common beginning of both, which some data sets also give as the prompt.
        both = list(zip(*sides.values(), strict=False))
        prompt = [message for message, _ in takewhile(lambda pair: pair[0] == pair[1], both)]
        sides = {name: messages[len(prompt) :] for name, messages in sides.items()}
    for name, other in (("chosen", "rejected"), ("rejected", "chosen")):
        if not sides[name]:
            remedy = "give each its own reply after the common beginning, or give the prompt"
            raise TaskError(f"{name} is the beginning of {other}", remedy=remedy)
    if not prompt:
        remedy = "give prompt: a text or messages; or begin both with the same messages"
        raise TaskError(f"the row has {', '.join(data)}, and no prompt", remedy=remedy)
    prompt = with_system(prompt, data)
    given = [_turns(prompt + own, told, name, learned_from=len(prompt)) for name, own in sides.items()]
    return [(given[0], 1.0), (given[1], 0.0)]


def _other_form(data: Mapping[str, Any], kind: str) -> TaskError:
    return TaskError(f"the row has {', '.join(data) or 'no key'}", remedy=f"give {_FORMS[kind]}")


def _prompt(data: Mapping[str, Any]) -> list[Message]:
    """Messages. A string becomes a user message."""
    if "prompt" not in data:
        return _messages(data["conversations"], "conversations")
    value = data["prompt"]
    return [{"role": "user", "content": value}] if isinstance(value, str) else _messages(value, "prompt")


def _reply(value: Any, key: str) -> list[Message]:
    """Messages. A string becomes an assistant message, and a single message a list."""
    if isinstance(value, str):
        return [{"role": "assistant", "content": value}]
    return _messages([value] if isinstance(value, Mapping) else value, key)


def _messages(value: Any, key: str) -> list[Message]:
    return _checked(chat_messages(value, key), key, value)


def _checked(messages: Sequence[Message], key: str, given: Any = None) -> list[Message]:
    """The messages of a value; items that were joined have no index in it."""
    where = "{key}[{index}]" if isinstance(given, list) and len(given) == len(messages) else "message {index} of {key}"
    return [_message(each, where.format(key=key, index=index)) for index, each in enumerate(messages)]


def _message(value: Message, where: str) -> Message:
    if value["role"] not in ROLES:
        raise TaskError(f"{where} has the role {value['role']!r}", remedy=f"one of {', '.join(ROLES)}")
    if strangers := [key for key, item in value.items() if key not in _KEYS and item not in (None, [], {}, "")]:
        remedy = f"a message has {', '.join(_KEYS)}"
        raise TaskError(f"{where} has {', '.join(strangers)}, which would be lost", remedy=remedy)
    if value.get("weight") not in (None, 0, 1):
        raise TaskError(f"{where} has weight {value['weight']!r}", remedy="1: learned; 0: context")
    if value["role"] != "assistant" and (value.get("tool_calls") or value.get("reasoning_content")):
        raise TaskError(f"{where} has calls or reasoning, and the role {value['role']}", remedy="the assistant's")
    try:
        return {**value, "content": _content(value.get("content"))}
    except ValueError as error:
        raise TaskError(f"{where}: {error}", remedy="text only") from None


def _content(value: Any) -> str:
    """The text of a message's content, which may be a list of parts."""
    if isinstance(value, list):
        return "".join(_part(part) for part in value)
    return values.text(value)


def _part(part: Any) -> str:
    if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
        raise ValueError(f"a part of the content is {part!r:.60}")
    return str(part["text"])


def _turns(messages: Sequence[Message], told: _Told, side: str = "", learned_from: int = 0) -> SupervisedConversation:
    """The conversation of the messages.

    Args:
        side: side of a pair, chosen or rejected.
        learned_from: index of the first message after the prompt. Replies before it are not learned.
    """
    messages = _answered(messages)
    starts = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    if not starts or starts[0] == 0:
        why = "the assistant has no message" if not starts else "the first message is the assistant's"
        raise TaskError(why, remedy="give a prompt, then a reply")
    turns: list[Said] = []
    for start, end in zip(starts, [*starts[1:], len(messages)], strict=True):
        if end == start + 1 < len(messages):
            raise TaskError(
                f"messages {start} and {end} are both the assistant's",
                remedy="write them as one message, or add the message between them",
            )
        learned = start >= learned_from and messages[start].get("weight") != 0
        following = [_plain(each) for each in messages[start + 1 : end]]
        turns.append(Said(_text(messages[start], told), following, learned))
    if not any(turn.trains for turn in turns):
        why = "every reply has weight 0" if starts[-1] >= learned_from else f"{side} has no reply after the prompt"
        raise TaskError(f"{why}: there is nothing to learn")
    group = f"{told.row.stem}:{told.row.number}"
    opening = [_plain(message) for message in messages[: starts[0]]]
    own = f"{group}/{side}" if side else group
    return SupervisedConversation(own, group, opening, turns, told.row.place, told.tools)


@dataclass
class _Unread:
    """Counts the replies that are learned and that a rollout would answer with an error of the format."""

    replies: int = 0
    unread: int = 0
    first: str = ""

    def counted(self, conversation: SupervisedConversation, told: _Told) -> SupervisedConversation:
        """Counts the replies of a conversation; returns it. A call of a tool that opens later counts as read."""
        known = told.parser.functions
        for turn in conversation.turns if known else ():
            if not turn.trains:
                continue
            self.replies += 1
            faults = [each for each in told.parser.parse(turn.text, known).errors if not each.tool]
            self.unread += bool(faults)
            if faults and not self.first:
                self.first = f"{told.row.place}: {faults[0].snippet!r:.80}: {faults[0].message}"
        return conversation

    def report(self, name: str) -> None:
        """Warns of such replies, and shows the first."""
        if self.unread:
            told = "%d of %d replies to learn hold what looks like a call and is none in the format %s. The first: %s"
            _log.warning(told, self.unread, self.replies, name, self.first)


def _answered(messages: Sequence[Message]) -> list[Message]:
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
        if ids and stray in ids:
            why = f"the call {stray!r} has more than one result"
        elif ids and stray is not None:
            why = f"a result names the call {stray!r}; the calls before it are {', '.join(map(repr, ids))}"
        elif any(results) and missing is not None:
            why = f"the call {missing!r} has no result, and another of the same message has one"
        elif not ids and (calls := (reply or {}).get("tool_calls")):
            count = sum(message["role"] == "tool" for message in following)
            if count > len(calls):
                why = f"{len(calls)} calls have {count} results"
        if why:
            raise TaskError(why, remedy="give every call one result, with its tool_call_id")
    return in_call_order(messages)


def _plain(message: Message) -> Message:
    return {key: item for key, item in message.items() if key != "weight" and item is not None}


def _text(message: Message, told: _Told) -> str:
    """The text of a reply: its reasoning, its content, its calls, in the policy's format."""
    parser, calls, content = told.parser, message.get("tool_calls") or [], str(message["content"])
    try:
        written = [_call(call, told) for call in calls]
        text = parser.format(content, written) if written else content
    except (ValueError, KeyError, TypeError) as error:
        raise TaskError(
            f"a tool call cannot be written in the format {parser.name}: {error}",
            remedy='{"function": {"name": ..., "arguments": {...}}}, or write the call into the content',
        ) from None
    if not (thought := message.get("reasoning_content")):
        return text
    if not isinstance(thought, str) or parser.thought[1] in content:
        why = "is no text" if not isinstance(thought, str) else "stands in the content, too"
        raise TaskError(f"the reasoning of a reply {why}", remedy="give it once: reasoning_content, or in the content")
    if parser.thought[1] in thought:
        why = f"the reasoning of a reply holds {parser.thought[1]!r}, which would end it"
        raise TaskError(why, remedy="give the reasoning without its marks")
    return parser.thinking(thought.strip(), text)


def _call(call: Any, told: _Told) -> tuple[str, Mapping[str, Any]]:
    function = call.get("function") if isinstance(call, Mapping) else None
    known_tools = told.parser.functions
    if not isinstance(function, Mapping):
        raise ValueError(f"a call is {call!r:.80}")
    if known_tools and function["name"] not in known_tools:
        whose = "recipe's" if told.tools is None else "row's"
        raise ValueError(f"the {whose} tools have no {function['name']!r}, but {', '.join(known_tools)}")
    given = read_arguments(function["arguments"])
    root = known_tools.get(function["name"], {}).get("parameters") or {}
    known = schemas.arguments(root)
    # A table has one column for the arguments of all tools and calls, and fills it with nulls.
    filled = {k for k, v in given.items() if v is None and known}
    kept = {k for k in filled if k in known and schemas.Argument(root, known[k]).fits(None)}
    return str(function["name"]), {k: v for k, v in given.items() if k not in filled - kept}
