"""The chat completions API of OpenAI, which is also the internal format."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from agentrl.proxy.dialects.dialect import (
    Body,
    Dialect,
    DialectAnswer,
    at_least_one,
    event,
    function,
    listed,
    refuse,
    refuse_choice,
    refuse_unread,
)
from agentrl.proxy.messages import stop_strings

_READ = (
    "messages", "tools", "tool_choice", "n", "stop", "max_tokens", "max_completion_tokens", "agentrl_rewards",
)  # fmt: skip
_HOLDS: dict[str, tuple[Any, ...]] = {
    "response_format": ({"type": "text"},),
    "parallel_tool_calls": (True,),
    "modalities": (["text"],),
    "function_call": ("auto",),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "top_logprobs": (0,),
}
"""Values that request the default behaviour, by field."""


class ChatCompletions(Dialect):
    """`POST /v1/chat/completions`."""

    name = "OpenAI chat completions"
    paths = ("/v1/chat/completions",)

    def read(self, body: Body, earlier: Mapping[str, list[Body]]) -> Body:
        """The request itself."""
        limit = at_least_one(body.get("max_completion_tokens") or body.get("max_tokens"), "'max_tokens'")
        n, stop = at_least_one(body.get("n"), "'n'"), stop_strings(body.get("stop"), "'stop'")
        tools = _tools(body)
        refuse_choice("'tool_choice'", body.get("tool_choice"), tools)
        refuse_unread(body, _READ, _HOLDS)
        return {**body, "max_tokens": limit, "n": n, "stop": stop, "tools": tools}

    def whole(self, answer: DialectAnswer) -> Body:
        """A completion with one choice per reply."""
        choices = [
            {"index": k, "message": one.message, "finish_reason": one.finish, "logprobs": None}
            for k, one in enumerate(answer.said)
        ]
        return {**_envelope(answer), "object": "chat.completion", "choices": choices, "usage": _usage(answer)}

    def events(self, answer: DialectAnswer) -> Iterator[bytes]:
        """Chunks of each choice in turn: text, tool calls, finish reason."""
        chunk = {**_envelope(answer), "object": "chat.completion.chunk"}
        for index, one in enumerate(answer.said):
            deltas: list[Body] = [{"role": "assistant", "content": one.message["content"]}]
            calls = enumerate(one.message.get("tool_calls", ()))
            deltas += [{"tool_calls": [{"index": k, **call}]} for k, call in calls]
            for delta in deltas:
                yield event({**chunk, "choices": [{"index": index, "delta": delta, "finish_reason": None}]})
            yield event({**chunk, "choices": [{"index": index, "delta": {}, "finish_reason": one.finish}]})
        if (answer.body.get("stream_options") or {}).get("include_usage"):
            yield event({**chunk, "choices": [], "usage": _usage(answer)})
        yield b"data: [DONE]\n\n"


def _tools(body: Body) -> list[Body]:
    tools = listed(body.get("tools") or [], "'tools'")
    for tool in tools:
        if not isinstance(tool.get("function"), dict):
            raise refuse(f"a tool of type {tool.get('type')!r}", "this model calls functions; programs run them")
    return [tool | {"function": tool["function"] | _whole(tool["function"])["function"]} for tool in tools]


def _whole(said: Body) -> Body:
    return function(said.get("name"), said.get("description"), said.get("parameters"))


def _envelope(answer: DialectAnswer) -> Body:
    return {"id": f"chatcmpl-{answer.id}", "created": answer.created, "model": answer.model}


def _usage(answer: DialectAnswer) -> Body:
    prompt, completion = answer.prompt_tokens, answer.completion_tokens
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
