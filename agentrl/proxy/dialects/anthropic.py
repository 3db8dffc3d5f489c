"""The Messages API of Anthropic: content in blocks, tool results inside user messages."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from agentrl.proxy.dialects.dialect import (
    Body,
    Dialect,
    DialectAnswer,
    at_least_one,
    call,
    event,
    function,
    image_part,
    joined,
    listed,
    refuse,
    refuse_choice,
    refuse_demand,
    refuse_unread,
)
from agentrl.proxy.messages import BadRequest, stop_strings

STOPS = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens"}
"""`stop_reason` by the finish reason of the internal format."""

ERRORS = {
    "engine_error": "api_error",
    "no_session": "authentication_error",
    "session_ended": "not_found_error",
    "not_found": "not_found_error",
}
"""Anthropic's error types by the proxy's error codes; others are `invalid_request_error`."""


_READ = ("messages", "system", "tools", "tool_choice", "max_tokens", "stop_sequences")
_HOLDS: dict[str, tuple[Any, ...]] = {
    "output_config": ({}, {"effort": "low"}, {"effort": "medium"}, {"effort": "high"})
}
"""Values that request the default behaviour, by field."""


_THOUGHTS = ("thinking", "redacted_thinking")


class Messages(Dialect):
    """`POST /v1/messages`."""

    name = "Anthropic Messages"
    paths = ("/v1/messages",)
    counting = ("/v1/messages/count_tokens",)

    def read(self, body: Body, earlier: Mapping[str, list[Body]]) -> Body:
        """Converts the system prompt to a message, and blocks to text, tool calls and tool results."""
        system = _text(body.get("system"))
        opening = [{"role": "system", "content": system}] if system else []
        messages = [one for message in listed(body.get("messages"), "'messages'") for one in _messages(message)]
        tools = [_tool(tool) for tool in listed(body.get("tools") or [], "'tools'")]
        choice = body.get("tool_choice")
        refuse_choice("'tool_choice'", choice.get("type") if isinstance(choice, dict) else choice, tools)
        if isinstance(choice, dict):
            refuse_demand("'disable_parallel_tool_use'", choice.get("disable_parallel_tool_use"), (None, False))
        refuse_unread(body, _READ, _HOLDS)
        limit = at_least_one(body.get("max_tokens"), "'max_tokens'")
        stop = stop_strings(body.get("stop_sequences"), "'stop_sequences'")
        opening += joined(messages)
        return {"messages": opening, "tools": tools, "max_tokens": limit, "stop": stop, "asked": body}

    def whole(self, answer: DialectAnswer) -> Body:
        """A message with a text block, if there is text, and a block for each tool call."""
        return _message(answer, _blocks(answer), answer.completion_tokens) | _stop(answer)

    def events(self, answer: DialectAnswer) -> Iterator[bytes]:
        """Events of the message: start, delta and stop of each block."""

        def send(kind: str, **more: Any) -> bytes:
            return event({"type": kind, **more}, kind)

        yield send("message_start", message=_message(answer, [], 0) | {"stop_reason": None, "stop_sequence": None})
        for index, block in enumerate(_blocks(answer)):
            empty, delta = _said(block) if block["type"] == "text" else _called(block)
            yield send("content_block_start", index=index, content_block=block | empty)
            yield send("content_block_delta", index=index, delta=delta)
            yield send("content_block_stop", index=index)
        yield send("message_delta", delta=_stop(answer), usage={"output_tokens": answer.completion_tokens})
        yield send("message_stop")

    def problem(self, code: str, message: str, status: int) -> Body:
        """An error in Anthropic's format."""
        kind = ERRORS.get(code, "invalid_request_error")
        return {"type": "error", "error": {"type": kind, "message": message}}


def _messages(message: Body) -> list[Body]:
    role, content = message.get("role"), message.get("content")
    if not isinstance(content, list):
        return [{"role": role, "content": content}]
    blocks = listed(content, "the content of a message")
    return [_assistant(blocks)] if role == "assistant" else _user(role, blocks)


def _assistant(blocks: list[Body]) -> Body:
    """Thinking blocks are dropped: the proxy sends thinking as text of the reply, never as a block."""
    text = "".join(_text([block]) for block in blocks if block.get("type") not in ("tool_use", *_THOUGHTS))
    calls = [call(b.get("id"), b.get("name"), b.get("input")) for b in blocks if b.get("type") == "tool_use"]
    return {"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})}


def _user(role: Any, blocks: list[Body]) -> list[Body]:
    """Converts a user message: tool results first, then the user's text, whatever their order."""
    results = [
        {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": _content(block.get("content"))}
        for block in blocks
        if block.get("type") == "tool_result"
    ]
    rest = [block for block in blocks if block.get("type") != "tool_result"]
    return [*results, *([{"role": role, "content": _content(rest)}] if rest or not results else [])]


def _content(content: Any) -> Any:
    """Returns a content of text and images; a text without images."""
    blocks = content if isinstance(content, list) else []
    if not any(isinstance(block, dict) and block.get("type") == "image" for block in blocks):
        return _text(content)
    listed(blocks, "the content of a message")
    return [_image(b) if b.get("type") == "image" else {"type": "text", "text": _text([b])} for b in blocks]


def _image(block: Body) -> Body:
    source = block.get("source")
    if not isinstance(source, dict) or source.get("type") != "base64":
        raise BadRequest("an image has no source of type 'base64'", remedy="send the image itself: nothing is fetched")
    return image_part(f"data:{source.get('media_type')};base64,{source.get('data')}")


def _text(content: Any) -> str:
    """The text of a content: a string, text blocks, or None.

    Raises:
        BadRequest: the content has other blocks.
    """
    if content is None or isinstance(content, str):
        return content or ""
    blocks = listed(content, "the content of a message")
    other = next((block.get("type") for block in blocks if block.get("type") != "text"), None)
    if other is not None:
        raise BadRequest(f"only text can be recorded, and a message holds a block of type {other!r}")
    return "".join(str(block.get("text", "")) for block in blocks)


def _tool(tool: Body) -> Body:
    if tool.get("type", "custom") != "custom":
        raise refuse(f"a tool of type {tool['type']!r}", "this model calls functions; programs run them")
    return function(tool.get("name"), tool.get("description"), tool.get("input_schema"))


def _blocks(answer: DialectAnswer) -> list[Body]:
    message = answer.said[0].message
    text = message["content"]
    calls = [
        {
            "type": "tool_use",
            "id": one["id"],
            "name": one["function"]["name"],
            "input": json.loads(one["function"]["arguments"]),
        }
        for one in message.get("tool_calls", ())
    ]
    return [*([{"type": "text", "text": text}] if text else []), *calls]


def _said(block: Body) -> tuple[Body, Body]:
    """The start and the delta of a text block."""
    return {"text": ""}, {"type": "text_delta", "text": block["text"]}


def _called(block: Body) -> tuple[Body, Body]:
    """The start and the delta of a tool call."""
    return {"input": {}}, {"type": "input_json_delta", "partial_json": json.dumps(block["input"], ensure_ascii=False)}


def _message(answer: DialectAnswer, blocks: list[Body], tokens: int) -> Body:
    return {
        "id": f"msg_{answer.id}",
        "type": "message",
        "role": "assistant",
        "model": answer.model,
        "content": blocks,
        "usage": {"input_tokens": answer.prompt_tokens, "output_tokens": tokens},
    }


def _stop(answer: DialectAnswer) -> Body:
    said = answer.said[0]
    by_string = said.stop is not None and said.finish == "stop"
    reason = "stop_sequence" if by_string else STOPS.get(said.finish, "end_turn")
    return {"stop_reason": reason, "stop_sequence": said.stop if by_string else None}
