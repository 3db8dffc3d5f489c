"""Messages of programs in the internal format (chat completions): conversion to and from agentrl's, and equality."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from agentrl.chat.formats import native_calls
from agentrl.chat.formats.native_calls import as_text, read_arguments
from agentrl.chat.formats.parser import Parser, Reply
from agentrl.types.engine import NativeCall
from agentrl.types.errors import AgentRLError
from agentrl.types.parts.content import Content, Part, TakeImage, checked, joined, text_of
from agentrl.types.seeds import derive_seed
from agentrl.types.task import Message

MOST_STOPS = 64
"""The most stop strings of a request: each is looked for after every token."""


def stop_strings(given: Any, what: str) -> list[str]:
    """The stop strings of a request: a text, a list of texts, or None.

    Raises:
        BadRequest: it is something else, or a text is empty.
    """
    strings = [given] if isinstance(given, str) else given or []
    if not isinstance(strings, list) or not all(isinstance(string, str) and string for string in strings):
        raise BadRequest(f"{what} is {given!r:.200}, not a text or a list of texts, none of them empty")
    if len(strings) > MOST_STOPS:
        raise BadRequest(f"{what} lists {len(strings)} texts, and at most {MOST_STOPS} are taken")
    return strings


def before_stop(text: str, strings: Sequence[str]) -> tuple[str, str | None]:
    """The text up to the first stop string, and that string; of two that begin at the same place, the longer."""
    found = [(text.find(string), -len(string), string) for string in strings if string in text]
    if not found:
        return text, None
    at, _, string = min(found)
    return text[:at], string


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

    A call with arguments that are not a JSON object (from a model's history) is unchanged.

    Args:
        take: converts an image to a part.

    Raises:
        BadRequest: the message lacks a role, or a call of it a name.
        ImageRefused: as `content_of`.
    """
    role, content = message.get("role"), content_of(message, take)
    if not isinstance(role, str):
        raise BadRequest("a message has no role")
    if role == "developer":
        role = "system"
    if calls := calls_of(message):
        content = as_text(parser, text_of(content), calls)
    ours: Message = {"role": role, "content": content}
    return ours | {key: message[key] for key in ("name", "tool_call_id") if isinstance(message.get(key), str)}


def calls_of(message: dict[str, Any]) -> list[NativeCall]:
    """Returns the calls of a message: programs send the arguments as JSON text, like the API, or as an object.

    Raises:
        BadRequest: they are not a list, or a call lacks a name.
    """
    try:
        return native_calls.calls_of(message)
    except ValueError as error:
        raise BadRequest(str(error)) from None


def keys_of(messages: Sequence[dict[str, Any]]) -> list[str]:
    """Two keys that are equal for conversations with the same content. Fields that programs add or reorder are ignored.

    The first one holds the ids of calls. In the second one, results are told apart by the place of their call: programs
    may give calls ids of their own, and the Gemini API may leave them out.
    """
    essences = [_essence(message) for message in messages]
    exact = _hashed(essences)
    _number_calls(essences)
    return [exact, _hashed(essences)]


def _hashed(essences: list[list[Any]]) -> str:
    return hashlib.sha256(json.dumps(essences, sort_keys=True).encode()).hexdigest()


def _number_calls(essences: list[list[Any]]) -> None:
    """Replaces the ids of calls by their place, and those of results by that of the newest call with that id."""
    places: dict[str, tuple[int, int]] = {}
    for number, essence in enumerate(essences):
        for index, call in enumerate(essence[2]):
            places[json.dumps(call[0])] = number, index
            call[0] = number, index
        if essence[0] == "tool":
            essence[3] = places.get(json.dumps(essence[3]), essence[3])


def to_openai(reply: Reply, said: str, seed: int) -> dict[str, Any]:
    """Converts a sampled reply to a message of the API.

    A reply without a parsable call is text, as sampled. With parsable calls, the beginning of each other one is part of
    the text.

    Args:
        seed: of the reply. Templates may write the ids of calls into prompts: equal seeds give equal ids.
    """
    if not reply.calls:
        return {"role": "assistant", "content": said}
    text = "\n".join(filter(None, [reply.text, *(fault.snippet for fault in reply.errors)]))
    calls = [
        {
            "id": f"call_{derive_seed(seed, index):016x}",
            "type": "function",
            "function": {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)},
        }
        for index, call in enumerate(reply.calls)
    ]
    return {"role": "assistant", "content": text or None, "tool_calls": calls}


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
        return read_arguments(arguments)
    except ValueError:
        return arguments
