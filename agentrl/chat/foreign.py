"""Conversations and tools in the forms of other libraries and APIs, as chat messages.

Read are chat completions (also their first form, `function_call`), items of the Responses API, messages of Anthropic's
API (`tool_use`, `tool_result`), and ShareGPT (`{"from": ..., "value": ...}`). A message of the result has `role`,
`content`, of an assistant `reasoning_content` and `tool_calls`, of a tool `tool_call_id` and `name`; keys that no form
knows are left as they are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from agentrl.types.errors import TaskError
from agentrl.types.parts.foreign_json import read_json
from agentrl.types.task import Message

ROLES = ("system", "developer", "user", "assistant", "tool")

_ALIASES = {
    "human": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bot": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "ai": "assistant",
    "model": "assistant",
    "function": "tool",
    "observation": "tool",
    "tool_response": "tool",
    "function_response": "tool",
    "ipython": "tool",
}
"""Further names of roles: of ShareGPT, of Gemini, of the first form of function calls, of Llama. Data sets write them
with capitals and dashes, too."""

_CALLS = ("function_call", "tool_call")
"""Roles of a message that is a call, as JSON."""

_TEXTS = ("text", "input_text", "output_text", "refusal")
_THOUGHTS = ("reasoning_content", "reasoning", "thinking")
SYSTEM_KEYS = ("system", "system_prompt", "system_message")
_OF_ITEMS = ("type", "id", "status", "phase", "prompt_token_ids", "generation_token_ids", "generation_log_probs")
"""Keys of an item of the Responses API that no model sees; the last three are of NeMo Gym's rollouts."""
_FORM = (
    'a message: {role, content}, or {from, value}; or an item of the Responses API: {"type": "function_call", ...}, '
    "function_call_output, reasoning, message"
)


class Talk(NamedTuple):
    """A conversation and the tools that it could use; None: not named."""

    messages: list[Message]
    tools: list[dict[str, Any]] | None = None


def chat_messages(given: Any, what: str) -> list[Message]:
    """Converts a conversation in any of the forms.

    A call of the Responses API or of ShareGPT joins the assistant's message right before it. Reasoning joins the
    message after it.

    Args:
        what: name of the value in error messages, for example `messages`.

    Raises:
        TaskError: it is not a list of messages; names the message, and has no place.
    """
    given = from_json(given)
    if not isinstance(given, Sequence) or isinstance(given, str | bytes) or not given:
        raise TaskError(f"{what} is {given!r:.60}", remedy="a list of messages: {role, content}")
    made: list[Message] = []
    thoughts: list[str] = []
    for index, item in enumerate(given):
        where = f"{what}[{index}]"
        if not isinstance(item, Mapping):
            raise TaskError(f"{where} is {item!r:.60}", remedy=_FORM)
        for piece in _pieces({key: value for key, value in item.items() if value is not None}, where):
            if isinstance(piece, str):
                thoughts.append(piece)
                continue
            joins = piece.pop("joins", False) and made and made[-1]["role"] == "assistant"
            if joins and piece.get("weight", 1) != made[-1].get("weight", 1):
                raise TaskError(f"{where} and the message that it joins differ in weight", remedy="give both the same")
            if thoughts:
                if piece["role"] != "assistant":
                    raise TaskError(f"the reasoning before {where} has no reply of the assistant", remedy=_FORM)
                before = made[-1].get("reasoning_content") if joins else None
                thought = "\n\n".join(filter(None, [before, *thoughts]))
                (made[-1] if joins else piece)["reasoning_content"] = thought
                thoughts = []
            if joins:
                made[-1]["tool_calls"] = [*(made[-1].get("tool_calls") or ()), *piece["tool_calls"]]
            else:
                made.append(piece)
    if thoughts:
        raise TaskError(f"the reasoning at the end of {what} has no reply of the assistant", remedy="add the reply")
    return made


def with_system(messages: list[Message], row: Mapping[str, Any], path: str | None = None) -> list[Message]:
    """Returns the messages behind the system message that is a field of its own next to them: `system`,
    `system_prompt` or `system_message`; of the Responses API, `instructions` next to `input`.

    Args:
        row: the row that holds the messages.
        path: their field; dots lead inside.

    Raises:
        TaskError: the field is no text, or differs from the system message; has no place.
    """
    around, last = row, path or ""
    if path is not None and path not in row:
        *outer, last = path.split(".")
        for step in outer:
            around = from_json(around.get(step)) if isinstance(around, Mapping) else {}
    if not isinstance(around, Mapping):
        return messages
    texts: dict[str, str] = {}
    for key in ("instructions",) if last == "input" else SYSTEM_KEYS:
        given = _content(from_json(around.get(key)))
        if isinstance(given, str):
            given = [{"type": "text", "text": given}]
        if not isinstance(given, list) or not all(isinstance(part, Mapping) for part in given):
            continue  # a column of another meaning
        if wrong := next((part for part in given if not isinstance(part.get("text"), str)), None):
            raise TaskError(f"a part of the field {key} is {wrong!r:.60}", remedy="text: it is the system message")
        if (text := "".join(part["text"] for part in given)).strip():
            texts[key] = text
    if not texts:
        return messages
    system = next(iter(texts.values()))
    if not messages or messages[0]["role"] not in ("system", "developer"):
        messages = [{"role": "system", "content": system}, *messages]
    if other := next((key for key, text in texts.items() if text != messages[0]["content"]), None):
        raise TaskError(f"the row has a system message, and a field {other}", remedy="leave one of them out")
    return messages


def tool_definitions(given: Any, what: str = "tools", start: int = 0) -> list[dict[str, Any]]:
    """Converts definitions of tools, of chat completions or the Responses API, with or without the wrapper
    `{"type": "function", "function": ...}`, also as JSON text.

    Args:
        what: name of the value in error messages.
        start: index of the first definition there.

    Raises:
        TaskError: a definition has no name, its parameters are not a schema of an object, or two have one name; has no
            place.
    """
    given = from_json(given)
    if given is None or given == "":
        return []
    if not isinstance(given, Sequence) or isinstance(given, str | bytes):
        raise TaskError(f"{what} is {given!r:.60}", remedy='a list of definitions: [{"name": ..., "parameters": ...}]')
    found = [_definition(from_json(each), f"{what}[{index}]") for index, each in enumerate(given, start)]
    names = [each["function"]["name"] for each in found]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise TaskError(f"{what} has the tool {twice!r} twice", remedy="leave one out")
    return found


def _definition(given: Any, where: str) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise TaskError(f"{where} is {given!r:.60}", remedy=f"a definition: {_TOOL_FORM}")
    kind = given.get("type") or "function"
    function = given.get("function")
    inner = function if isinstance(function, Mapping) else given
    if kind != "function":
        raise TaskError(f"{where} is a tool of type {kind!r}", remedy=f"only functions can be shown: {_TOOL_FORM}")
    name = inner.get("name")
    if not isinstance(name, str) or not name.strip():
        raise TaskError(f"{where} has no name", remedy=f"a definition: {_TOOL_FORM}")
    key = next((key for key in ("parameters", "input_schema", "inputSchema") if inner.get(key) is not None), "")
    parameters = from_json(inner.get(key)) if key else {}
    if not isinstance(parameters, Mapping) or not _is_of_object(parameters):
        raise TaskError(
            f"the {key} of {where} ({name!r}) are {parameters!r:.60}, not a schema of an object", remedy=_TOOL_FORM
        )
    schema = {"type": "object", "properties": {}, **_without_nulls(parameters)}
    text = inner.get("description")
    return {"type": "function", "function": {"name": name, "description": text or "", "parameters": schema}}


_TOOL_FORM = (
    '{"name": ..., "description": ..., "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}'
)
_ROOTS = {"properties", "$ref", "allOf", "anyOf", "oneOf", "required", "additionalProperties"}
_VALUES = {"default", "const", "enum", "examples"}
"""Keys of a schema whose values are data: null counts there."""


def _is_of_object(schema: Mapping[str, Any]) -> bool:
    kind, properties = schema.get("type"), schema.get("properties")
    named = kind == "object" or (isinstance(kind, list) and "object" in kind)
    return (named or (kind is None and (not schema or bool(_ROOTS & schema.keys())))) and (
        properties is None or isinstance(properties, Mapping)
    )


def _without_nulls(schema: Any) -> Any:
    """Removes keys that a table's column has filled in with nulls: the arguments of other tools."""
    if isinstance(schema, Mapping):
        held = {key: value for key, value in schema.items() if value is not None or key in ("default", "const")}
        return {key: value if key in _VALUES else _without_nulls(value) for key, value in held.items()}
    return [_without_nulls(each) for each in schema] if isinstance(schema, list) else schema


def _pieces(item: dict[str, Any], where: str) -> Iterator[Message | str]:
    """Yields the message of an item, or its reasoning as a text."""
    if "role" not in item and "from" not in item:
        kind = item.get("type")
        if kind not in ITEMS:
            raise TaskError(f"{where} is {item!r:.60}", remedy=_FORM)
        weight = {"weight": item["weight"]} if "weight" in item else {}
        yield from (each if isinstance(each, str) else {**each, **weight} for each in ITEMS[kind](item, where))
        return
    given = item.pop("role", None) or item.pop("from", None)
    item.pop("from", None)
    if not isinstance(given, str):
        raise TaskError(f"{where} is {item!r:.60}", remedy=_FORM)
    plain = given.strip().lower().replace("-", "_")
    role = _ALIASES.get(plain, plain if plain in (*ROLES, *_CALLS) else given)
    if item.get("type") == "message":  # an item of the Responses API, with what it has besides
        item = {key: value for key, value in item.items() if key not in _OF_ITEMS}
    content = item.pop("content", None)
    if "value" in item and content is None:
        content = item.pop("value")
        if role == "tool" and isinstance(content, str) and (marked := _RESPONSE.fullmatch(content)):
            content = marked[1]  # the marks of another template, which the policy's would put around it once more
    if role in _CALLS:
        call: Message = {"role": "assistant", "content": "", "tool_calls": _written_calls(content, where), **item}
        _fold(call, where)
        if thought := call.pop("reasoning_content", None):
            yield thought
        if lost := [key for key in item if key not in (*_THOUGHTS, "weight")]:
            raise TaskError(f"{where} is a call and has {', '.join(lost)}, which would be lost", remedy=_CALL_FORM)
        yield {**call, "joins": True}
        return
    if role == "user" and isinstance(content, list) and any(_is(part, "tool_result") for part in content):
        yield from _results(content, where)
        content = [part for part in content if not _is(part, "tool_result")]
        if not content:
            return
    message: Message = {"role": role, "content": _content(content), **item}
    if role == "assistant":
        _fold(message, where)
    yield message


_RESPONSE = re.compile(r"\s*<tool_response>\s*((?:(?!<tool_response>).)*?)\s*</tool_response>\s*", re.DOTALL)


def _is(part: Any, kind: str) -> bool:
    return isinstance(part, Mapping) and part.get("type") == kind


def _results(parts: Sequence[Any], where: str) -> Iterator[Message]:
    """Yields the results of calls in a user's message of Anthropic's API."""
    for part in parts:
        if not _is(part, "tool_result"):
            continue
        if not isinstance(part.get("tool_use_id"), str):
            raise TaskError(f"{where} has a result without a tool_use_id", remedy="give the id of its tool_use")
        yield {"role": "tool", "tool_call_id": part["tool_use_id"], "content": _content(part.get("content"))}


def _fold(message: Message, where: str) -> None:
    """Brings calls and reasoning of an assistant's message under their keys."""
    parts = message["content"] if isinstance(message["content"], list) else []
    inside = [str(part["thinking"]) for part in parts if _is_thought(part)]
    if inside:
        message["content"] = [part for part in parts if not _is_thought(part)]
    given = [value for key in _THOUGHTS if (value := message.pop(key, None))]
    if wrong := next((value for value in given if not isinstance(value, str)), None):
        raise TaskError(f"the reasoning of {where} is {wrong!r:.60}", remedy=f"text, under {_THOUGHTS[0]}")
    beside = [value for value in given if value.strip()]
    thoughts = list(dict.fromkeys([*(["\n\n".join(inside)] if inside else []), *beside]))
    if len(thoughts) > 1:
        raise TaskError(f"{where} has two reasonings", remedy=f"give one, under {_THOUGHTS[0]}")
    if thoughts:
        message["reasoning_content"] = thoughts[0]
    if (call := message.pop("function_call", None)) and not message.get("tool_calls"):
        message["tool_calls"] = [{"type": "function", "function": call}]
    if used := [part for part in parts if _is(part, "tool_use") and isinstance(part.get("name"), str)]:
        message["content"] = [part for part in message["content"] if part not in used]
        made = [_function(part.get("id"), part["name"], part.get("input")) for part in used]
        message["tool_calls"] = [*(message.get("tool_calls") or ()), *made]
    calls = message.get("tool_calls")
    if isinstance(calls, list):
        message["tool_calls"] = [_wrapped(call) for call in calls]


def _is_thought(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "thinking" and isinstance(part.get("thinking"), str)


def _wrapped(call: Any) -> Any:
    """Returns a call of the form `{name, arguments}` with the wrapper; any other as it is."""
    if isinstance(call, Mapping) and call.get("function") is None and {"name", "arguments"} <= call.keys():
        kept = {"id": call["id"]} if call.get("id") else {}
        return {**kept, "type": "function", "function": {"name": call["name"], "arguments": call["arguments"]}}
    return call


def _written_calls(content: Any, where: str) -> list[dict[str, Any]]:
    """Reads a call of ShareGPT: JSON of one `{"name": ..., "arguments": ...}`, or of a list."""
    try:
        read = read_json(content.encode()) if isinstance(content, str) else content
    except ValueError:
        read = None
    calls = read if isinstance(read, list) else [read]
    for call in calls:
        if not isinstance(call, Mapping) or not isinstance(call.get("name"), str):
            raise TaskError(f"{where} is a call, and its value is {content!r:.60}", remedy=_CALL_FORM)
        if lost := [key for key in call if key not in ("id", "type", "name", "arguments", "parameters")]:
            raise TaskError(f"the call of {where} has {', '.join(lost)}, which would be lost", remedy=_CALL_FORM)
    return [_function(call.get("id"), call["name"], call.get("arguments", call.get("parameters"))) for call in calls]


_CALL_FORM = 'JSON: {"name": ..., "arguments": {...}}, or a list of them'


def _function(id: Any, name: str, arguments: Any) -> dict[str, Any]:
    return {**({"id": id} if id else {}), "type": "function", "function": {"name": name, "arguments": arguments}}


def _message_item(item: Mapping[str, Any], where: str) -> Iterator[Message | str]:
    raise TaskError(f"{where} has no role", remedy=_FORM)


def _call_item(item: Mapping[str, Any], where: str) -> Iterator[Message | str]:
    if not isinstance(item.get("name"), str):
        raise TaskError(f"{where} is a call without a name", remedy=_FORM)
    made = _function(item.get("call_id") or item.get("id"), item["name"], item.get("arguments"))
    yield {"role": "assistant", "content": "", "tool_calls": [made], "joins": True}


def _result_item(item: Mapping[str, Any], where: str) -> Iterator[Message | str]:
    if not isinstance(item.get("call_id"), str):
        raise TaskError(f"{where} is a result without a call_id", remedy="give the call_id of its function_call")
    yield {"role": "tool", "tool_call_id": item["call_id"], "content": _content(item.get("output"))}


def _reasoning_item(item: Mapping[str, Any], where: str) -> Iterator[Message | str]:
    """Yields the reasoning of an item. One that is encrypted has none, and means nothing to any other model."""
    for parts in (item.get("content"), item.get("summary")):
        texts = [part.get("text") for part in parts or () if isinstance(part, Mapping)]
        if said := "\n\n".join(text for text in texts if isinstance(text, str) and text.strip()):
            yield said
            return


ITEMS: dict[Any, Callable[[Mapping[str, Any], str], Iterator[Message | str]]] = {
    "message": _message_item,
    "function_call": _call_item,
    "function_call_output": _result_item,
    "reasoning": _reasoning_item,
}
"""Readers of the items of the Responses API, by type."""


def _content(content: Any) -> Any:
    """Returns a content whose parts have the types of chat completions."""
    return [_part(part) for part in content] if isinstance(content, list) else content


def _part(part: Any) -> Any:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind in _TEXTS:
        text = part.get("text", part.get("refusal"))
        return {"type": "text", "text": text} if isinstance(text, str) else part
    if kind == "input_image":
        return {"type": "image_url", "image_url": {"url": part.get("image_url")}}
    return part


def from_json(given: Any) -> Any:
    """Returns the value of a column that holds lists and objects as JSON text."""
    if not isinstance(given, str) or not given.strip().startswith(("[", "{")):
        return given
    try:
        return json.loads(given)
    except ValueError:
        return given
