"""What a dialect is: an API that programs speak, to and from the form that the recorder takes."""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from agentrl.proxy.messages import BadRequest, content_of
from agentrl.proxy.recorder import ChatReply

Body = dict[str, Any]
"""A request or response: JSON."""


@dataclass(frozen=True)
class Answer:
    """What a request came to.

    Attributes:
        body: the request, as the program sent it.
        said: the replies.
        model: name of the model, for the program.
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
    """An API that programs speak.

    Attributes:
        path: where requests are posted, behind the base URL of the server.
    """

    path: str

    @abstractmethod
    def read(self, body: Body, earlier: Mapping[str, list[Body]]) -> Body:
        """A request as one of chat completions: `messages`, `tools`, `n`, `max_tokens`.

        Args:
            earlier: conversations of the session by the id of the answer that ended them, their messages in the
                internal form.

        Raises:
            BadRequest: it asks for what cannot be recorded.
        """

    @abstractmethod
    def whole(self, answer: Answer) -> Body:
        """The response."""

    @abstractmethod
    def events(self, answer: Answer) -> Iterator[bytes]:
        """The response as server-sent events."""

    def remembered(self, answer: Answer) -> str | None:
        """The id under which later requests may name this answer; None: they send the conversation."""
        return None

    def problem(self, code: str, message: str) -> Body:
        """The body of an error."""
        return {"error": {"message": message, "type": code, "code": code}}


def event(data: Body, name: str | None = None) -> bytes:
    """One server-sent event."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(data)}\n\n".encode()


def refuse(what: str, remedy: str | None = None) -> BadRequest:
    """An error for a request that holds something that cannot be recorded."""
    return BadRequest(f"{what} cannot be recorded token by token", remedy=remedy)


def listed(value: Any, what: str) -> list[Body]:
    """A list of JSON objects.

    Raises:
        BadRequest: it is none.
    """
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise BadRequest(f"{what} must be a list of objects")
    return value


def function(name: Any, description: Any, parameters: Any) -> Body:
    """A tool's definition in the internal form."""
    if not isinstance(name, str) or not name:
        raise BadRequest("a tool has no name")
    shape = parameters if isinstance(parameters, dict) else {"type": "object", "properties": {}}
    said = {"name": name, "description": str(description or ""), "parameters": shape}
    return {"type": "function", "function": said}


def call(id: Any, name: Any, arguments: Any) -> Body:
    """A tool call in the internal form; arguments as JSON text or as a value."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {"id": id, "type": "function", "function": {"name": name, "arguments": text}}


def at_least_one(value: Any, what: str) -> int | None:
    """A number of things, if there is one.

    Raises:
        BadRequest: it is none.
    """
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value > 0):
        return value
    raise BadRequest(f"{what} is {value!r}, not a number of at least 1")


def joined(messages: list[Body]) -> list[Body]:
    """Neighbouring messages of the assistant as one: some APIs list text and calls of one reply one by one."""
    found: list[Body] = []
    for message in messages:
        if found and message.get("role") == found[-1].get("role") == "assistant":
            before = found[-1]
            calls = [*before.get("tool_calls", ()), *message.get("tool_calls", ())]
            text = content_of(before) + content_of(message)
            found[-1] = {"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})}
        else:
            found.append(message)
    return found
