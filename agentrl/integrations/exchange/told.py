"""An episode as a conversation of chat completions, and what of its record that form does not hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from agentrl.chat.formats.parser import Parser, definitions_of
from agentrl.types.episode import MAIN, CallRecord, Episode, Turn
from agentrl.types.parts.content import text_of
from agentrl.types.task import Message


class Origin(NamedTuple):
    """The run that episodes come from: its id, the recipe's name, the model, and the time in seconds."""

    run: str
    recipe: str
    model: str
    created_at: float


@dataclass(frozen=True)
class ToldEpisode:
    """A conversation of chat completions: the messages, each reply with its turn.

    Attributes:
        said: messages; a reply has `reasoning_content` and `tool_calls`, whose arguments are objects.
        parser: of the recipe's call format.
        tools: definitions of its tools.
        lost: number of things that the messages do not hold, by name.
    """

    episode: Episode
    said: list[tuple[Message, Turn | None]]
    parser: Parser
    tools: list[dict[str, Any]]
    lost: Counter[str]

    @property
    def messages(self) -> list[Message]:
        """The messages alone."""
        return [message for message, _ in self.said]


def told(episode: Episode, parser: Parser) -> ToldEpisode:
    """Retells the first conversation of an episode.

    Args:
        parser: of the recipe's call format and tools.
    """
    tools = definitions_of(parser) if episode.tools is None else episode.tools
    lost: Counter[str] = Counter()
    own = [turn for turn in episode.turns if turn.context == MAIN]
    lost["turns of other conversations"] = len(episode.turns) - len(own)
    lost["rewritten prompts"] = sum(branch.messages is not None for branch in episode.branches)
    said: list[tuple[Message, Turn | None]] = [(_plain(message, lost), None) for message in episode.prompt]
    for turn in own:
        if turn.tools is not None:
            lost["changes of the tools"] += 1
            known = {each["function"]["name"] for each in tools}
            tools = [*tools, *(each for each in turn.tools if each["function"]["name"] not in known)]
        reply, ids = _reply(turn, parser.for_tools(tools), lost)
        said.append((reply, turn))
        for message in turn.observations:
            plain = _plain(message, lost)
            if plain["role"] == "tool":
                id = plain.pop("tool_call_id", None)
                plain |= {"tool_call_id": ids[id]} if id in ids else {}
            said.append((plain, None))
    return ToldEpisode(episode, said, parser, tools, +lost)


def _reply(turn: Turn, parser: Parser, lost: Counter[str]) -> tuple[Message, dict[str, str]]:
    """Returns the message of a turn, and the ids of its calls, by those of the record.

    Ids of a record are unique within a turn; those of the message, within the conversation. A reply with a call that
    cannot be read is text, as it was sampled.
    """
    read = parser.parse(turn.text, list(parser.functions))
    if turn.calls and not read.errors and all(call.valid for call in turn.calls):
        ids = [f"call_{turn.index}_{k}" for k in range(len(turn.calls))]
        calls = _calls(turn.calls, [(call.name, call.arguments) for call in read.calls])
        made: Message = {"role": "assistant", "content": read.text if read.calls else turn.text}
        if read.thought and read.calls:
            made["reasoning_content"] = read.thought
        made["tool_calls"] = [
            {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
            for id, (name, arguments) in zip(ids, calls, strict=True)
        ]
        if _written(made, parser) != turn.text:
            lost["white space and order within replies"] += 1
        return made, {call.id: id for call, id in zip(turn.calls, ids, strict=True)}
    if turn.calls:
        lost["calls that could not be read, which stay text"] += 1
    made = {"role": "assistant", "content": turn.text}
    if read.thought and turn.text.endswith(read.text) and not read.errors and read.text:
        apart = {**made, "content": read.text, "reasoning_content": read.thought}
        if _written(apart, parser) == turn.text:
            made = apart
    return made, {}


def _calls(records: Sequence[CallRecord], read: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """The calls as the reply wrote them; those of the record, if an engine gave them apart from the text."""
    return read if len(read) == len(records) else [(call.name, call.arguments) for call in records]


def _written(message: Message, parser: Parser) -> str:
    """A reply as supervised training writes it."""
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", ())]
    try:
        text = parser.format(message["content"], calls) if calls else message["content"]
    except ValueError:
        return ""
    thought = message.get("reasoning_content")
    return parser.thinking(thought, text) if thought else str(text)


def _plain(message: Message, lost: Counter[str]) -> Message:
    """A message whose content is text; an image is `[image]`."""
    content = message.get("content")
    if isinstance(content, list):
        lost["images"] += sum(part.get("type") == "image" for part in content)
        content = text_of(content)
    return {**message, "content": content or ""}
