"""Messages of programs in the internal format (chat completions): conversion to and from agentrl's, and equality."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from typing import Any

from agentrl.chat.formats.parser import Parser, Reply, read_json
from agentrl.types.errors import AgentRLError
from agentrl.types.task import Message
from agentrl.types.values import text


class BadRequest(AgentRLError):
    """The request is malformed or cannot be recorded token by token."""


class NoSession(AgentRLError):
    """A request names a session that does not exist."""


class SessionEnded(AgentRLError):
    """A request came after its session had ended."""


def content_of(message: dict[str, Any]) -> str:
    """The text of a message, whether it is a string, a list of text parts, or absent.

    Raises:
        BadRequest: it holds something else, for example an image.
    """
    content = message.get("content")
    if content is None:
        return ""
    if isinstance(content, str):
        return text(content)
    if isinstance(content, list) and all(isinstance(part, dict) and part.get("type") == "text" for part in content):
        return text("".join(str(part.get("text", "")) for part in content))
    raise BadRequest("only text can be recorded, and a message holds something else")


def from_openai(message: dict[str, Any], parser: Parser) -> Message:
    """A message as the renderer takes it: calls are written out in the model's own format.

    Raises:
        BadRequest: it has no role, or calls that are no JSON.
    """
    role, content = message.get("role"), content_of(message)
    if not isinstance(role, str):
        raise BadRequest("a message has no role")
    if role == "developer":
        role = "system"
    if calls := message.get("tool_calls"):
        try:
            named = [(call["function"]["name"], read_json(call["function"]["arguments"])) for call in calls]
            content = parser.format(content, named)
        except (KeyError, TypeError, ValueError) as error:
            raise BadRequest(f"a tool call of the conversation cannot be written: {error}") from None
    ours: Message = {"role": role, "content": content}
    return ours | {key: message[key] for key in ("name", "tool_call_id") if isinstance(message.get(key), str)}


def key_of(messages: Sequence[dict[str, Any]]) -> str:
    """A key that is equal for conversations with the same content. Ignores fields that programs add or reorder."""
    return json.dumps([_essence(message) for message in messages], sort_keys=True)


def to_openai(reply: Reply, said: str) -> dict[str, Any]:
    """Converts a sampled reply to a message of the API. Calls that cannot be parsed stay in the text."""
    if not reply.calls or reply.errors:
        return {"role": "assistant", "content": said}
    calls = [
        {
            "id": f"call_{secrets.token_hex(8)}",
            "type": "function",
            "function": {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)},
        }
        for call in reply.calls
    ]
    return {"role": "assistant", "content": reply.text or None, "tool_calls": calls}


def _essence(message: dict[str, Any]) -> list[Any]:
    calls = [
        [call.get("id"), call.get("function", {}).get("name"), _normal(call.get("function", {}).get("arguments"))]
        for call in message.get("tool_calls") or ()
    ]
    return [message.get("role"), content_of(message), calls, message.get("tool_call_id")]


def _normal(arguments: Any) -> Any:
    """Parses arguments: programs may format the same JSON differently."""
    try:
        return json.loads(arguments)
    except (TypeError, ValueError):
        return arguments
