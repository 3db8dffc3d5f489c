"""Messages of programs in the internal format (chat completions): conversion to and from agentrl's, and equality."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from agentrl.chat.formats.parser import Parser, Reply, read_json
from agentrl.types.errors import AgentRLError
from agentrl.types.parts.content import Content, Part, TakeImage, checked, joined, text_of
from agentrl.types.seeds import derive_seed
from agentrl.types.task import Message


class BadRequest(AgentRLError):
    """The request is malformed or cannot be recorded token by token."""


class NoSession(AgentRLError):
    """A request names a session that does not exist."""


class SessionEnded(AgentRLError):
    """A request came after its session had ended."""


class RewardsRefused(AgentRLError):
    """A closing call has rewards, and the recipe does not take them."""


def content_of(message: dict[str, Any], take: TakeImage) -> Content:
    """The content of a message: text, or a list of parts if the message holds an image. An absent content is "".

    Args:
        take: makes a part of an image.

    Raises:
        BadRequest: the message holds something else, for example audio.
        ImageRefused: an image cannot be read, or the engine takes text only.
    """
    content = message.get("content")
    if content is not None and not isinstance(content, str | list):
        raise BadRequest("the content of a message is neither text nor a list of parts")
    parts = content if isinstance(content, list) else []
    kinds = [part.get("type") if isinstance(part, dict) else None for part in parts]
    if strange := [kind for kind in kinds if kind not in ("text", "image_url")]:
        raise BadRequest(f"text and images (image_url) can be recorded, and a message holds {strange[0]!r}")
    return joined("", checked(content, "a message", take))


def refuse_image(given: Any) -> Part:
    """Refuses every image.

    Raises:
        BadRequest: always.
    """
    raise BadRequest("images cannot be recorded here, and a message holds one")


def text_of_reply(message: dict[str, Any]) -> str:
    """The text of a message of the assistant.

    Raises:
        BadRequest: the message holds an image.
    """
    content = content_of(message, _by_hash)
    if not isinstance(content, str):
        raise BadRequest("a message of the assistant holds an image, which no model here says")
    return content


def from_openai(message: dict[str, Any], parser: Parser, take: TakeImage) -> Message:
    """Converts a message for the renderer. Tool calls become text in the model's own format.

    Args:
        take: makes a part of an image.

    Raises:
        BadRequest: the message has no role, or the arguments of a call are not JSON.
        ImageRefused: as `content_of`.
    """
    role, content = message.get("role"), content_of(message, take)
    if not isinstance(role, str):
        raise BadRequest("a message has no role")
    if role == "developer":
        role = "system"
    if calls := message.get("tool_calls"):
        try:
            named = [(call["function"]["name"], arguments_of(call)) for call in calls]
            content = parser.format(text_of(content), named)
        except (KeyError, TypeError, ValueError) as error:
            raise BadRequest(f"a tool call of the conversation cannot be written: {error}") from None
    ours: Message = {"role": role, "content": content}
    return ours | {key: message[key] for key in ("name", "tool_call_id") if isinstance(message.get(key), str)}


def arguments_of(call: dict[str, Any]) -> Any:
    """The arguments of a call: programs send JSON text, as the API does, or the object.

    Raises:
        ValueError: the text is not JSON.
    """
    given = call["function"]["arguments"]
    return read_json(given if isinstance(given, str) else json.dumps(given))


def key_of(messages: Sequence[dict[str, Any]]) -> str:
    """A key that is equal for conversations with the same content. Ignores fields that programs add or reorder."""
    return json.dumps([_essence(message) for message in messages], sort_keys=True)


def to_openai(reply: Reply, said: str, seed: int) -> dict[str, Any]:
    """Converts a sampled reply to a message of the API. Calls that cannot be parsed stay in the text.

    Args:
        seed: of the reply. Templates may write the ids of calls into prompts: equal seeds give equal ids.
    """
    if not reply.calls or reply.errors:
        return {"role": "assistant", "content": said}
    calls = [
        {
            "id": f"call_{derive_seed(seed, index):016x}",
            "type": "function",
            "function": {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)},
        }
        for index, call in enumerate(reply.calls)
    ]
    return {"role": "assistant", "content": reply.text or None, "tool_calls": calls}


def _essence(message: dict[str, Any]) -> list[Any]:
    calls = [
        [call.get("id"), call.get("function", {}).get("name"), _normal(call.get("function", {}).get("arguments"))]
        for call in message.get("tool_calls") or ()
    ]
    return [message.get("role"), content_of(message, _by_hash), calls, message.get("tool_call_id")]


def _by_hash(url: str) -> Part:
    """An image in the comparison of conversations."""
    return {"type": "image", "url": hashlib.sha256(url.encode()).hexdigest()}


def _normal(arguments: Any) -> Any:
    """Parses arguments: programs may format the same JSON differently."""
    try:
        return json.loads(arguments)
    except (TypeError, ValueError):
        return arguments
