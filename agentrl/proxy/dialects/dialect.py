"""The interface of a dialect: an API for programs, converted to and from the recorder's format."""

from __future__ import annotations

import json
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from agentrl.proxy.messages import BadRequest, text_of_reply
from agentrl.proxy.recorder import ChatReply

Body = dict[str, Any]
"""A request or response: JSON."""


@dataclass(frozen=True)
class DialectAnswer:
    """The replies to a request.

    Attributes:
        body: the request as the program sent it.
        said: the sampled replies.
        model: name of the model in the response.
    """

    body: Body
    said: list[ChatReply]
    model: str
    created: int = field(default_factory=lambda: int(time.time()))
    id: str = field(default_factory=lambda: f"{time.time_ns():x}")

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return self.said[0].prompt_tokens

    @property
    def completion_tokens(self) -> int:
        """Sampled tokens of all replies."""
        return sum(one.completion_tokens for one in self.said)


class Dialect(ABC):
    """An API that programs use.

    Attributes:
        name: of the API, for people.
        paths: paths of requests, relative to the server's base URL, the usual one first. `{model}` stands for any name.
        counting: paths of requests for the number of tokens of a conversation.
    """

    name: str
    paths: tuple[str, ...]
    counting: tuple[str, ...] = ()

    @abstractmethod
    def read(self, body: Body, earlier: Mapping[str, list[Body]]) -> Body:
        """Converts a request to the internal format: `messages`, `tools`, `n`, `max_tokens`, `stop`.

        Args:
            earlier: conversations of the session, in the internal format, by the id of the response that ended them.

        Raises:
            BadRequest: the request is malformed or cannot be recorded token by token.
        """

    def streams(self, body: Body, query: Mapping[str, str]) -> bool:
        """Returns True if a request, with the query of its URL, gets server-sent events."""
        return bool(body.get("stream"))

    @abstractmethod
    def whole(self, answer: DialectAnswer) -> Body | list[Body]:
        """The response as one JSON value."""

    @abstractmethod
    def events(self, answer: DialectAnswer) -> Iterator[bytes]:
        """The response as server-sent events."""

    def remembered(self, answer: DialectAnswer) -> str | None:
        """Returns the id with which later requests continue this response; None if they send the conversation."""
        return None

    def counted(self, tokens: int) -> Body:
        """The response to a request for the number of tokens."""
        return {"input_tokens": tokens}

    def problem(self, code: str, message: str, status: int) -> Body:
        """The body of an error. `status`: of HTTP."""
        return {"error": {"message": message, "type": code, "code": code}}


def event(data: Body, name: str | None = None) -> bytes:
    """One server-sent event."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(data)}\n\n".encode()


def refuse(what: str, remedy: str | None = None) -> BadRequest:
    """The error for a request that cannot be recorded token by token."""
    return BadRequest(f"{what} cannot be recorded token by token", remedy=remedy)


_INSTEAD = {
    "'seed'": "leave 'seed' out: seeds follow from that of the recipe, and the episodes of a group must differ",
    "'tool_choice'": "say 'auto' (smolagents: OpenAIModel(..., tool_choice='auto')), and answer a reply without a call",
}
"""Remedies by field, if other than to leave the field out."""


def refuse_demand(name: str, value: Any, allowed: Sequence[Any]) -> None:
    """Refuses a value that asks for more than the model's own reply: nothing here would see to it.

    Raises:
        BadRequest: the value is none of the allowed ones.
    """
    if value not in allowed:
        told = json.dumps(value, default=str)
        raise BadRequest(
            f"{name} is {told if len(told) <= 80 else told[:77] + '...'}, which nothing here sees to: the reply is "
            "what the model samples",
            remedy=_INSTEAD.get(name, f"leave {name} out, and check the reply in the program"),
        )


HINTS = frozenset(
    re.findall(
        r"\S+",
        """
    model stream stream_options user metadata store service_tier safety_identifier prompt_cache_key
    prompt_cache_retention prediction cache_control
    temperature top_p top_k min_p
    reasoning reasoning_effort verbosity thinking effort
    """,
    )
)
"""Fields without effect on the record: user, transport, billing, length of reasoning. The sampling parameters of the
recipe hold for all requests (docs/programs.md)."""

_NOTHING: tuple[Any, ...] = (None, False, [], {})
"""Values that request nothing, in fields without a rule of the dialect."""


def refuse_unread(body: Body, read: Sequence[str], holds: Mapping[str, Sequence[Any]]) -> None:
    """Refuses unknown fields of a request, unless their values request nothing.

    Args:
        read: the fields that the dialect reads.
        holds: allowed values by field, besides null; for other fields false and empty values.

    Raises:
        BadRequest: the request has an unknown field.
    """
    for name, value in body.items():
        if name not in read and name not in HINTS:
            refuse_demand(f"'{name}'", value, [None, *holds[name]] if name in holds else _NOTHING)


def refuse_choice(name: str, value: Any, tools: Sequence[Body]) -> None:
    """Refuses a choice of tools that the model is not free in. Raises BadRequest."""
    refuse_demand(name, value, [None, "auto", *([] if tools else ["none"])])


def listed(value: Any, what: str) -> list[Body]:
    """Checks that a value is a list of JSON objects.

    Raises:
        BadRequest: it is not.
    """
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise BadRequest(f"{what} must be a list of objects")
    return value


def function(name: Any, description: Any, parameters: Any) -> Body:
    """A tool definition in the internal format."""
    if not isinstance(name, str) or not name:
        raise BadRequest("a tool has no name")
    shape = parameters if isinstance(parameters, dict) else {"type": "object", "properties": {}}
    said = {"name": name, "description": str(description or ""), "parameters": shape}
    return {"type": "function", "function": said}


def image_part(url: Any) -> Body:
    """An image in the internal form."""
    return {"type": "image_url", "image_url": {"url": url}}


def call(id: Any, name: Any, arguments: Any) -> Body:
    """A tool call in the internal format. `arguments`: JSON text or a value."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {"id": id, "type": "function", "function": {"name": name, "arguments": text}}


def at_least_one(value: Any, what: str) -> int | None:
    """Checks that a value is a positive integer or None.

    Raises:
        BadRequest: it is not.
    """
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value > 0):
        return value
    raise BadRequest(f"{what} is {value!r}, not a number of at least 1")


def joined(messages: list[Body]) -> list[Body]:
    """Merges consecutive assistant messages: some APIs list the text and the calls of a reply separately."""
    found: list[Body] = []
    for replies, run in groupby(messages, lambda message: message.get("role") == "assistant"):
        said = list(run)
        if not replies or len(said) == 1:
            found += said
            continue
        calls = [call for message in said for call in message.get("tool_calls", ())]
        text = "".join(map(text_of_reply, said))
        found.append({"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})})
    return found
