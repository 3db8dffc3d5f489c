"""The Responses API of OpenAI: items instead of messages, and conversations stored by the server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any

from agentrl.chat.foreign import ITEMS, chat_messages
from agentrl.proxy.dialects.dialect import (
    Body,
    Dialect,
    DialectAnswer,
    at_least_one,
    event,
    function,
    joined,
    listed,
    refuse,
    refuse_choice,
    refuse_demand,
    refuse_unread,
)
from agentrl.proxy.messages import BadRequest
from agentrl.types.errors import TaskError

_FIELDS = (
    "input", "instructions", "tools", "tool_choice", "max_output_tokens", "previous_response_id", "text",
)  # fmt: skip
_HOLDS: dict[str, tuple[Any, ...]] = {
    "parallel_tool_calls": (True,),
    "truncation": ("disabled",),
    "include": ([], ["reasoning.encrypted_content"]),  # reasoning is never an item, so none can be included
    "top_logprobs": (0,),
}
"""Values that request the default behaviour, by field."""


class Responses(Dialect):
    """`POST /v1/responses`. `previous_response_id` continues an answer of the same session."""

    name = "OpenAI Responses"
    paths = ("/v1/responses",)

    def read(self, body: Body, earlier: Mapping[str, list[Body]]) -> Body:
        """Joins `instructions`, the stored conversation and the items of `input`."""
        if body.get("conversation") or body.get("background"):
            raise refuse("'conversation' and 'background'", "send the items, or previous_response_id")
        if body.get("stop"):
            raise BadRequest("this API has no 'stop'", remedy="ask by /v1/chat/completions")
        system = [{"role": "system", "content": body["instructions"]}] if body.get("instructions") else []
        before = _remembered(body.get("previous_response_id"), earlier)
        given = body.get("input")
        items = [{"role": "user", "content": given}] if isinstance(given, str) else listed(given, "'input'")
        messages = joined([*before, *_messages(items)])
        tools = [_tool(tool) for tool in listed(body.get("tools") or [], "'tools'")]
        refuse_choice("'tool_choice'", body.get("tool_choice"), tools)
        form = body["text"].get("format") if isinstance(body.get("text"), dict) else None
        refuse_demand("'text.format'", form, (None, {"type": "text"}))
        refuse_unread(body, _FIELDS, _HOLDS)
        limit = at_least_one(body.get("max_output_tokens"), "'max_output_tokens'")
        return {"messages": [*system, *messages], "tools": tools, "max_tokens": limit, "asked": body}

    def whole(self, answer: DialectAnswer) -> Body:
        """A response with a message item, if there is text, and the tool calls."""
        return _response(answer, _items(answer), over=True)

    def remembered(self, answer: DialectAnswer) -> str | None:
        """The response's id, unless the request has `store: false`."""
        return None if answer.body.get("store") is False else f"resp_{answer.id}"

    def events(self, answer: DialectAnswer) -> Iterator[bytes]:
        """Events of the response: added, deltas and done of each item."""
        numbers = count()

        def send(kind: str, **more: Any) -> bytes:
            return event({"type": kind, "sequence_number": next(numbers), **more}, kind)

        yield send("response.created", response=_response(answer, [], over=False))
        yield send("response.in_progress", response=_response(answer, [], over=False))
        items = _items(answer)
        for index, item in enumerate(items):
            at = {"output_index": index, "item_id": item["id"]}
            empty: Body = {"content": []} if item["type"] == "message" else {"arguments": ""}
            started = {**item, **empty, "status": "in_progress"}
            yield send("response.output_item.added", output_index=index, item=started)
            filled = _message_events if item["type"] == "message" else _call_events
            for kind, more in filled(item):
                yield send(kind, **at, **more)
            yield send("response.output_item.done", output_index=index, item=item)
        response = _response(answer, items, over=True)
        yield send(f"response.{response['status']}", response=response)


def _remembered(id: Any, earlier: Mapping[str, list[Body]]) -> list[Body]:
    """Returns the conversation up to a response, without its instructions, which each request repeats."""
    if id is None:
        return []
    if id not in earlier:
        raise BadRequest(f"this session has no response {id!r}", remedy="send the items of the conversation as 'input'")
    return [message for message in earlier[id] if message["role"] != "system"]


def _messages(items: list[Body]) -> list[Body]:
    """Converts items. Those of reasoning are dropped: the proxy sends reasoning as text of the reply, never as an item.

    Raises:
        BadRequest: an item is malformed or cannot be recorded.
    """
    for item in items:
        if (kind := item.get("type", "message")) not in ITEMS:
            raise refuse(f"an item of type {kind!r}", f"items may be of type {', '.join(ITEMS)}")
    said = [item for item in items if item.get("type") != "reasoning"]
    try:
        return chat_messages(said, "'input'") if said else []
    except TaskError as error:
        raise BadRequest(error.message, remedy=error.remedy) from None


def _tool(tool: Body) -> Body:
    if tool.get("type") != "function":
        raise refuse(f"a tool of type {tool.get('type')!r}", "this model calls functions; programs run them")
    return function(tool.get("name"), tool.get("description"), tool.get("parameters"))


def _items(answer: DialectAnswer) -> list[Body]:
    message = answer.said[0].message
    text, calls = message["content"], message.get("tool_calls", ())
    parts: list[Body] = [{"type": "output_text", "text": text or "", "annotations": [], "logprobs": []}]
    said = {"type": "message", "id": f"msg_{answer.id}", "role": "assistant", "status": "completed", "content": parts}
    return [
        *([said] if text or not calls else []),
        *(
            {
                "type": "function_call",
                "id": f"fc_{answer.id}_{k}",
                "call_id": one["id"],
                "name": one["function"]["name"],
                "arguments": one["function"]["arguments"],
                "status": "completed",
            }
            for k, one in enumerate(calls)
        ),
    ]


def _response(answer: DialectAnswer, items: list[Body], *, over: bool) -> Body:
    cut, body = over and answer.said[0].finish == "length", answer.body
    return {
        "id": f"resp_{answer.id}",
        "object": "response",
        "created_at": answer.created,
        "status": ("incomplete" if cut else "completed") if over else "in_progress",
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "instructions": body.get("instructions"),
        "model": answer.model,
        "output": items,
        "parallel_tool_calls": True,
        "previous_response_id": body.get("previous_response_id"),
        "tool_choice": body.get("tool_choice") or "auto",
        "tools": body.get("tools") or [],
        "metadata": body.get("metadata") or {},
        "usage": _usage(answer) if over else None,
    }


def _usage(answer: DialectAnswer) -> Body:
    prompt, completion = answer.prompt_tokens, answer.completion_tokens
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": completion,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt + completion,
    }


def _message_events(item: Body) -> Iterator[tuple[str, Body]]:
    (part,) = item["content"]
    yield "response.content_part.added", {"content_index": 0, "part": {**part, "text": ""}}
    yield "response.output_text.delta", {"content_index": 0, "delta": part["text"], "logprobs": []}
    yield "response.output_text.done", {"content_index": 0, "text": part["text"], "logprobs": []}
    yield "response.content_part.done", {"content_index": 0, "part": part}


def _call_events(item: Body) -> Iterator[tuple[str, Body]]:
    yield "response.function_call_arguments.delta", {"delta": item["arguments"]}
    yield "response.function_call_arguments.done", {"arguments": item["arguments"], "name": item["name"]}
