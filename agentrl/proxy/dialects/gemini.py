"""The Gemini API of Google: contents of parts, results inside user contents, calls that may have no id.

Field names are read in both spellings of protobuf's JSON, `systemInstruction` and `system_instruction`.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Collection, Iterator, Mapping
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
    refuse_demand,
    refuse_unread,
)
from agentrl.proxy.messages import BadRequest, stop_strings

STATUSES = {403: "PERMISSION_DENIED", 404: "NOT_FOUND", 408: "DEADLINE_EXCEEDED", 410: "NOT_FOUND", 503: "UNAVAILABLE"}
"""Google's status by the status of HTTP; others are `INVALID_ARGUMENT`."""

_READ = ("contents", "systemInstruction", "tools", "toolConfig", "generationConfig", "safetySettings", "labels",
         "serviceTier")  # fmt: skip
_CONFIG_READ = ("maxOutputTokens", "stopSequences", "topP", "topK", "thinkingConfig", "mediaResolution")
_HOLDS: dict[str, tuple[Any, ...]] = {
    "candidateCount": (1,),
    "responseMimeType": ("text/plain",),
    "responseModalities": ([], ["TEXT"]),
    "presencePenalty": (0,),
    "frequencyPenalty": (0,),
}
"""Values of `generationConfig` that request the default behaviour, by field."""

_PARTS = ("text", "inlineData", "functionCall", "functionResponse")
_RESULTS = ("output", "result")
"""Keys under which a response holds a result alone: that of the API's own convention, and that of google-genai."""


class GenerateContent(Dialect):
    """`POST /v1beta/models/MODEL:generateContent`."""

    name = "Gemini"
    paths = tuple(f"/{version}/models/{{model}}:generateContent" for version in ("v1beta", "v1"))
    counting = tuple(f"/{version}/models/{{model}}:countTokens" for version in ("v1beta", "v1"))

    def read(self, body: Body, earlier: Mapping[str, list[Body]]) -> Body:
        """Converts contents to messages, and declarations of functions to tools.

        A request that counts tokens may have the whole request under `generateContentRequest`.
        """
        given = _named(body)
        given = _named(given.get("generateContentRequest") or given)
        config = _named(given.get("generationConfig"), "'generationConfig'")
        told = _named(given.get("systemInstruction"), "'systemInstruction'")
        system = _text(_parts(told)) if told else ""
        tools = [tool for each in listed(given.get("tools") or [], "'tools'") for tool in _tools(_named(each))]
        _refuse_choice(_named(given.get("toolConfig"), "'toolConfig'"), tools)
        refuse_unread(given, _READ, {})
        refuse_unread(config, _CONFIG_READ, _HOLDS)
        messages = _messages(listed(given.get("contents"), "'contents'"))
        return {
            "messages": [*([{"role": "system", "content": system}] if system else []), *messages],
            "tools": tools,
            "max_tokens": at_least_one(config.get("maxOutputTokens"), "'maxOutputTokens'"),
            "stop": stop_strings(config.get("stopSequences"), "'stopSequences'"),
            "asked": body,
        }

    def whole(self, answer: DialectAnswer) -> Body | list[Body]:
        """A response with one candidate."""
        return _response(answer, _reply(answer), over=True)

    def events(self, answer: DialectAnswer) -> Iterator[bytes]:
        """A response per part; the last one has the finish reason."""
        return map(event, _pieces(answer))

    def counted(self, tokens: int) -> Body:
        """The number of tokens."""
        return {"totalTokens": tokens}

    def problem(self, code: str, message: str, status: int) -> Body:
        """An error in Google's format."""
        return {"error": {"code": status, "message": message, "status": STATUSES.get(status, "INVALID_ARGUMENT")}}


class StreamGenerateContent(GenerateContent):
    """`POST /v1beta/models/MODEL:streamGenerateContent`: server-sent events with `?alt=sse`, else a JSON array."""

    paths = tuple(f"/{version}/models/{{model}}:streamGenerateContent" for version in ("v1beta", "v1"))
    counting = ()

    def streams(self, body: Body, query: Mapping[str, str]) -> bool:
        """Returns True for events."""
        return query.get("alt") == "sse"

    def whole(self, answer: DialectAnswer) -> Body | list[Body]:
        """The events as an array."""
        return list(_pieces(answer))


def _named(value: Any, what: str = "a part of the request") -> Body:
    """Returns an object with its field names in camel case, without fields that are null; {} for None.

    Raises:
        BadRequest: it is not an object.
    """
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise BadRequest(f"{what} must be an object")
    spelt = {re.sub(r"_([a-z])", lambda found: found[1].upper(), key): each for key, each in value.items()}
    return {key: each for key, each in spelt.items() if each is not None}


def _parts(content: Body) -> list[Body]:
    """The parts of a content, without thoughts: the proxy sends thinking as text of the reply, never as a thought.

    Raises:
        BadRequest: a part cannot be recorded.
    """
    parts = [_named(part) for part in listed(content.get("parts") or [], "'parts'")]
    parts = [part for part in parts if not part.get("thought")]
    for part in parts:
        strange = [key for key, value in part.items() if isinstance(value, dict) and key not in (*_PARTS, *_BESIDE)]
        if strange or sum(key in part for key in _PARTS) != 1:
            held = ", ".join(strange or part) or "nothing"
            raise refuse(f"a part that holds {held}", f"a part may hold one of {', '.join(_PARTS)}")
    return parts


_BESIDE = ("partMetadata", "videoMetadata", "mediaResolution")
"""Objects that a part may hold beside its content."""


def _messages(contents: list[Body]) -> list[Body]:
    """Converts contents. A call without an id gets one by its place, and a result without one that of its call."""
    found: list[Body] = []
    waiting = _Waiting()
    for index, content in enumerate(map(_named, contents)):
        role, parts = content.get("role") or "user", _parts(content)
        if role == "model":
            called = [_named(part["functionCall"], "'functionCall'") for part in parts if "functionCall" in part]
            calls = [
                call(each.get("id") or f"call_{index}_{k}", each.get("name"), each.get("args") or {})
                for k, each in enumerate(called)
            ]
            text = _text([part for part in parts if "functionCall" not in part])
            found.append({"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})})
            if not (found[-2:-1] and found[-2]["role"] == "assistant"):
                waiting = _Waiting()
            for each in calls:
                waiting.add(each["id"], each["function"]["name"])
            continue
        answers = [part["functionResponse"] for part in parts if "functionResponse" in part]
        results = [_named(each, "'functionResponse'") for each in answers]
        named = {_key(result.get("id")) for result in results}
        for result in results:
            id = waiting.answered(result.get("id"), result.get("name"), named)
            found.append({"role": "tool", "tool_call_id": id, "content": _result(result)})
        rest = [part for part in parts if "functionResponse" not in part]
        if rest or not results:
            found.append({"role": "user" if role == "function" else role, "content": _content(rest)})
    return joined(found)


class _Waiting:
    """The calls of the last reply that have no result so far.

    Each call is looked at a few times only: a request may have tens of thousands of calls and results.
    """

    def __init__(self) -> None:
        self._ids: list[Any] = []
        self._open: list[bool] = []
        self._by_id: dict[str, deque[int]] = {}
        self._by_name: dict[str, deque[int]] = {}
        self._in_order = deque[int]()

    def add(self, id: Any, name: Any) -> None:
        """Adds a call."""
        number = len(self._ids)
        self._ids.append(id)
        self._open.append(True)
        self._by_id.setdefault(_key(id), deque()).append(number)
        self._by_name.setdefault(_key(name), deque()).append(number)
        self._in_order.append(number)

    def answered(self, id: Any, name: Any, named: Collection[str]) -> Any:
        """Takes the call of a result, by id, by name, or the first, and returns its id; that of the result without one.

        Args:
            named: keys of the ids of all results: their calls have no other result.
        """
        number = self._next(self._by_id.get(_key(id)), ())
        if number is None:
            number = self._next(self._by_name.get(_key(name)), named)
        if number is None:
            number = self._next(self._in_order, named)
        if number is None:
            return id
        self._open[number] = False
        return self._ids[number]

    def _next(self, calls: deque[int] | None, named: Collection[str]) -> int | None:
        """Returns the next call of a queue; None if there is none. Those that others take are taken off it."""
        while calls:
            number = calls.popleft()
            if self._open[number] and not (named and _key(self._ids[number]) in named):
                return number
        return None


def _key(value: Any) -> str:
    """An id or a name, which may be any JSON, as a key."""
    return json.dumps(value, sort_keys=True)


def _result(result: Body) -> Any:
    """Returns the content of a result: what a response holds under its only key, if that is one of `_RESULTS`, else
    the response as JSON; and images.
    """
    response = result.get("response")
    alone = next((response[key] for key in _RESULTS if isinstance(response, dict) and [*response] == [key]), response)
    text = alone if isinstance(alone, str) else "" if alone is None else json.dumps(alone, ensure_ascii=False)
    images = [_image(_named(part)) for part in listed(result.get("parts") or [], "'parts' of a functionResponse")]
    return [{"type": "text", "text": text}, *images] if images else text


def _content(parts: list[Body]) -> Any:
    """Returns a content of text and images; a text without images."""
    if not any("inlineData" in part for part in parts):
        return _text(parts)
    return [_image(part) if "inlineData" in part else {"type": "text", "text": _text([part])} for part in parts]


def _text(parts: list[Body]) -> str:
    for part in parts:
        if not isinstance(part.get("text"), str):
            raise BadRequest(f"only text can be recorded here, and a part holds {', '.join(part) or 'nothing'}")
    return "".join(part["text"] for part in parts)


def _image(part: Body) -> Body:
    """Converts an image. google-genai writes base64 with the alphabet of URLs."""
    data = _named(part.get("inlineData"), "'inlineData'")
    kind, file = data.get("mimeType"), data.get("data")
    if not isinstance(kind, str) or not kind.startswith("image/") or not isinstance(file, str):
        raise BadRequest(
            f"text and images can be recorded, and a part holds {kind!r}",
            remedy="send the image itself, as inlineData: nothing is fetched",
        )
    return image_part(f"data:{kind};base64,{file.replace('-', '+').replace('_', '/')}")


def _tools(tool: Body) -> Iterator[Body]:
    for kind in tool:
        if kind != "functionDeclarations":
            raise refuse(f"a tool of type {kind!r}", "this model calls functions; programs run them")
    for given in listed(tool.get("functionDeclarations") or [], "'functionDeclarations'"):
        declared = _named(given)
        schema = declared.get("parametersJsonSchema")
        parameters = _schema(declared.get("parameters")) if schema is None else schema
        yield function(declared.get("name"), declared.get("description"), parameters)


_NUMBERS = ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties")
"""Keys of a schema whose values are 64-bit integers, which protobuf's JSON writes as texts."""


def _schema(schema: Any) -> Any:
    """Converts a schema of the API (a subset of OpenAPI 3.0) to JSON Schema."""
    if not isinstance(schema, dict):
        return schema
    given, made = _named(schema), dict[str, Any]()
    for key, value in given.items():
        if key == "properties" and isinstance(value, dict):
            order = given.get("propertyOrdering")
            names = [*(n for n in (order if isinstance(order, list) else ()) if n in value), *value]
            made[key] = {name: _schema(value[name]) for name in dict.fromkeys(names)}
        elif key == "anyOf" and isinstance(value, list):
            made[key] = [_schema(each) for each in value]
        elif key == "items":
            made[key] = _schema(value)
        elif key in _NUMBERS and isinstance(value, str) and value.isdecimal():
            made[key] = int(value)
        elif key == "type" and isinstance(value, str):
            made |= {} if value == "TYPE_UNSPECIFIED" else {"type": value.lower()}
        elif key == "example":
            made["examples"] = [value]
        elif key not in ("nullable", "propertyOrdering"):
            made[key] = value
    return _nullable(made) if given.get("nullable") is True else made


def _nullable(schema: Body) -> Body:
    if isinstance(schema.get("type"), str):
        schema = schema | {"type": [schema["type"], "null"]}
    elif "anyOf" in schema:
        schema = schema | {"anyOf": [*schema["anyOf"], {"type": "null"}]}
    if isinstance(schema.get("enum"), list) and None not in schema["enum"]:
        schema = schema | {"enum": [*schema["enum"], None]}
    return schema


def _refuse_choice(given: Body, tools: list[Body]) -> None:
    """Refuses a choice of functions that the model is not free in. Raises BadRequest."""
    choice = _named(given.get("functionCallingConfig"), "'functionCallingConfig'")
    free = ["MODE_UNSPECIFIED", "AUTO", *([] if tools else ["NONE"])]
    mode = choice.get("mode")
    refuse_demand("'mode' of 'functionCallingConfig'", mode, [None, *free, *map(str.lower, free)])
    names = [tool["function"]["name"] for tool in tools]
    refuse_demand("'allowedFunctionNames'", choice.get("allowedFunctionNames"), [None, [], names])


def _reply(answer: DialectAnswer) -> list[Body]:
    """The parts of a reply: its text, if there is text or no call, and its calls."""
    message = answer.said[0].message
    calls = [
        {
            "functionCall": {
                "id": one["id"],
                "name": one["function"]["name"],
                "args": json.loads(one["function"]["arguments"]),
            }
        }
        for one in message.get("tool_calls", ())
    ]
    text = message["content"]
    return [*([{"text": text or ""}] if text or not calls else []), *calls]


def _pieces(answer: DialectAnswer) -> Iterator[Body]:
    *first, last = _reply(answer)
    for part in first:
        yield _response(answer, [part], over=False)
    yield _response(answer, [last], over=True)


def _response(answer: DialectAnswer, parts: list[Body], *, over: bool) -> Body:
    candidate: Body = {"content": {"role": "model", "parts": parts}, "index": 0}
    response: Body = {"candidates": [candidate], "modelVersion": answer.model, "responseId": answer.id}
    if over:
        candidate["finishReason"] = "MAX_TOKENS" if answer.said[0].finish == "length" else "STOP"
        response["usageMetadata"] = _usage(answer)
    return response


def _usage(answer: DialectAnswer) -> Body:
    prompt, completion = answer.prompt_tokens, answer.completion_tokens
    return {"promptTokenCount": prompt, "candidatesTokenCount": completion, "totalTokenCount": prompt + completion}
