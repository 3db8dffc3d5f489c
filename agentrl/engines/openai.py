"""The OpenAI-compatible engine: samples text from an API that takes text and images, for rollouts and evaluation.

The recipe's renderer turns the text into (byte) tokens, so the episode uses the same session, tools, rewards and store
as any other. Its episodes are not trainable. The API's token counts and their cost are recorded.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Self

import msgspec
from pydantic import Field, model_validator

from agentrl.chat.formats.native_calls import NO_RESULT, answers, as_text, ids_of, rounds
from agentrl.chat.formats.parser import definitions_of
from agentrl.chat.renderer import Renderer
from agentrl.config.sections import MAY_CHANGE
from agentrl.engines.http import HttpClient, Refused
from agentrl.engines.opening import EngineOpening
from agentrl.engines.replicas import Replicas, ServerSettings
from agentrl.types.engine import Completion, ContextOverflow, Engine, NativeCall, NativeReply, Sampling
from agentrl.types.episode import Usage, VersionSpan
from agentrl.types.errors import AgentRLError, EngineError, InfraError, RecipeError
from agentrl.types.parts.content import image_parts, joined, text_of
from agentrl.types.parts.image import data_url
from agentrl.types.task import Message, Task

STOPS = 4
"""Maximum number of stop strings that an API accepts."""

TOO_LONG = ("context_length", "maximum context", "too many tokens", "prompt is too long")
"""Substrings of the APIs' errors about a conversation that exceeds the context."""


class Filtered(InfraError):
    """The API's content filter removed a reply. A retry would give the same."""

    cause, retried = "refusal", False

    def __init__(self, message: str, place: str) -> None:
        remedy = "leave such tasks out, or use another API: what its filter does is no data"
        super().__init__(message, place=place, remedy=remedy)


def _broke_off(message: str, place: str) -> EngineError:
    return EngineError(f"{message}: it broke off", place=place)


BROKEN: dict[str, Callable[[str, str], InfraError]] = {"error": _broke_off, "content_filter": Filtered}
"""Errors by finish reason, for replies that are not the model's."""


class _Function(msgspec.Struct):
    name: str
    arguments: str = "{}"


class _ToolCall(msgspec.Struct):
    function: _Function
    id: str = ""
    type: str = "function"


class _ChatMessage(msgspec.Struct):
    content: str | None = None
    tool_calls: list[_ToolCall] | None = None


class _ChatChoice(msgspec.Struct):
    message: _ChatMessage
    finish_reason: str | None = None


class _TokenUsage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _ChatResponse(msgspec.Struct):
    choices: list[_ChatChoice]
    usage: _TokenUsage | None = None


@dataclass
class _Live:
    """State of a session.

    Attributes:
        messages: the live conversation.
        renderer: describes the tools in prompts.
        definitions: tools that requests send; empty without native tools.
        last: the API's last reply in its original form, until the conversation contains it.
        said: the API's replies in their original form, with their text, by the resulting message.
        read: reads an image by its hash.
    """

    messages: list[Message]
    renderer: Renderer
    definitions: list[dict[str, Any]]
    last: dict[str, Any] | None = None
    said: dict[int, tuple[Message, str, dict[str, Any]]] = field(default_factory=dict)
    read: Callable[[str], bytes] | None = None

    def own(self, message: Message) -> dict[str, Any] | None:
        """The reply of the API that a message is, unless an agent has changed it."""
        _, text, own = self.said.get(id(message), (None, None, None))
        return own if message["content"] == text else None

    def sent(self, content: Any) -> Any:
        """A content as the API takes it: images as data URLs."""
        if isinstance(content, str):
            return content
        return [part if part["type"] == "text" else self._image(part) for part in content]

    def _image(self, part: dict[str, Any]) -> dict[str, Any]:
        if self.read is None:
            raise AgentRLError("the engine was not told how images are read", remedy="call use_images")
        return {"type": "image_url", "image_url": {"url": data_url(self.read(part["blob"]))}}


class OpenAIEngine(Engine):
    """Samples from `/chat/completions`.

    Args:
        renderer: the recipe's renderer with the byte tokenizer; its parser writes the API's tool calls as text.
        definitions: tool definitions, sent with every request if `native_tools`.

    Raises:
        RecipeError: the environment variable with the key is not set (unless the API is on this machine).
    """

    class Settings(ServerSettings):
        """Settings in a recipe."""

        model: str | None = Field(None, description="Name of the model.")
        api_key_env: Annotated[str, MAY_CHANGE] = Field(
            "OPENAI_API_KEY", description="Environment variable that holds the API key."
        )
        native_tools: bool = Field(
            True, description="Send tools as the API defines them; false: describe them in the prompt."
        )
        input_price: float = Field(0.0, ge=0, description="Price per million prompt tokens.")
        output_price: float = Field(0.0, ge=0, description="Price per million completion tokens.")

        @model_validator(mode="after")
        def _name_an_api(self) -> Self:
            if not (len(self.urls) == 1 and self.model):
                raise ValueError(
                    "an API needs exactly one url and a model: {use: openai, urls: [https://.../v1], model: NAME}"
                )
            return self

    name = "openai"
    weights = "own"
    sees = reads_messages = True
    continues = False

    def __init__(self, settings: Settings, renderer: Renderer, definitions: list[dict[str, Any]]) -> None:
        key = os.environ.get(settings.api_key_env)
        if key is None and not settings.urls[0].startswith(("http://127.0.0.1", "http://localhost")):
            raise RecipeError(
                f"the environment variable {settings.api_key_env} is not set",
                place="engine.api_key_env",
                remedy=f"export {settings.api_key_env}=..., or name another variable",
            )
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._client = HttpClient(timeout_s=settings.timeout_s, headers=headers)
        self._api = Replicas(settings.urls, self._client, retries=settings.retries)
        self._settings, self._renderer = settings, renderer
        self._definitions = definitions if settings.native_tools else []
        self._live: dict[str, _Live] = {}

    @classmethod
    def open(cls, opening: EngineOpening) -> Self:
        """Makes the engine with the recipe's tools."""
        return cls(opening.settings, opening.renderer, opening.definitions)

    def called(self, who: str) -> None:
        """Sets the name of the engine's owner, for messages."""
        self._api.who = who

    async def attachable(self) -> Sequence[str]:
        """Returns the URL of the API: every worker has an engine of its own."""
        return self._settings.urls

    async def start(self) -> None:
        """Requests the list of models, to check URL and key.

        Raises:
            EngineError: the API is unreachable or rejects the key.
        """
        try:
            await self._client.get(f"{self._api.all[0].url}/models", type(None))
        except Refused as refused:
            if refused.status in (401, 403):
                raise EngineError(
                    refused.message, place=refused.place, remedy=f"check ${self._settings.api_key_env}"
                ) from None

    def counts(self) -> dict[str, Any]:
        """Returns a row for the API."""
        return {"name": self.name, "servers": self._api.counts()}

    def begin_session(self, session: str, task: Task, messages: list[Message], seed: int) -> None:
        """Keeps a reference to the session's messages, which grow during the episode."""
        self._live[session] = _Live(messages, self._renderer, self._definitions)

    def use_tools(self, session: str, renderer: Renderer) -> None:
        """Sets the session's tools if they differ from the recipe's."""
        live = self._live[session]
        live.renderer = renderer
        live.definitions = definitions_of(renderer.parser) if self._settings.native_tools else []

    def use_images(self, session: str, read: Callable[[str], bytes]) -> None:
        """Sets the function that reads images of the episode by hash."""
        self._live[session].read = read

    def replied(self, session: str, message: Message) -> None:
        """Remembers which message of the conversation the API's last reply is."""
        live = self._live[session]
        if live.last is not None:
            live.said[id(message)] = message, message["content"], live.last
            live.last = None

    async def generate(self, token_ids: Sequence[int], sampling: Sampling, session: str) -> Completion:
        """Samples the next message, as text in the recipe's format.

        Raises:
            ContextOverflow: the API rejects the conversation as too long.
            EngineError: no reply, or one that broke off.
            Refused: the API rejects the request.
            Filtered: the API took the reply away.
        """
        live = self._live[session]
        body: dict[str, Any] = {
            "model": self._settings.model,
            "messages": self._as_sent(live),
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": sampling.max_tokens,
        }
        if sampling.seed is not None:
            body["seed"] = sampling.seed & (1 << 31) - 1
        if sampling.stop:
            body["stop"] = list(sampling.stop[:STOPS])
        if live.definitions:
            body["tools"] = live.definitions
        try:
            reply = await self._api.post("/chat/completions", body, _ChatResponse)
        except Refused as refused:
            if any(words in refused.message.lower() for words in TOO_LONG):
                raise ContextOverflow(refused.message, place=refused.place) from None
            raise
        if not reply.choices:
            raise EngineError("the API gave no choice", place=self._api.all[0].url)
        choice = reply.choices[0]
        if (broken := BROKEN.get(choice.finish_reason or "")) is not None:
            raise broken(f"the API ended its reply with finish_reason {choice.finish_reason!r}", self._api.all[0].url)
        said = _with_ids(choice.message)
        live.last = {name: value for name, value in msgspec.to_builtins(said).items() if value is not None}
        native = _native(said)
        text = said.content or "" if native is None else as_text(live.renderer.parser, native.text, native.calls)
        if sampling.stop and not said.tool_calls:
            text = _stopped(text, sampling.stop, choice.finish_reason, live.renderer)
        ids = live.renderer.demonstrate(text, token_ids)
        return self._completion(ids, choice.finish_reason, reply.usage, native)

    def end_session(self, session: str) -> None:
        """Drops the reference to the conversation."""
        self._live.pop(session, None)

    async def close(self) -> None:
        """Closes the connections."""
        await self._client.close()

    def _as_sent(self, live: _Live) -> list[dict[str, Any]]:
        """The conversation in the API's format: its own messages unchanged, tool results with the ids of its calls."""
        if not live.definitions and not any(own.get("tool_calls") for _, _, own in live.said.values()):
            described = live.renderer.described(live.messages)
            return [
                {"role": "user", "content": live.sent(joined("<tool_response>\n", said, "\n</tool_response>"))}
                if role == "tool"
                else {"role": role, "content": live.sent(said)}
                for role, said in ((message["role"], message["content"]) for message in described)
            ]
        sent: list[dict[str, Any]] = []
        for said, following in rounds(live.messages):
            own = None if said is None else live.own(said)
            ids = ids_of(own)
            results, others = answers(ids, following)
            if said is not None:
                sent.append({"role": "assistant", "content": live.sent(said["content"])} if own is None else _echo(own))
            sent += map(_result, ids, results)
            if shown := _images_of(results):
                sent.append({"role": "user", "content": live.sent(joined(*shown))})
            for message in others:
                # A result that no call of the API asked for is about a call that was written as text.
                role = "user" if message["role"] == "tool" else message["role"]
                sent.append({"role": role, "content": live.sent(message["content"])})
        return sent

    def _completion(
        self, ids: list[int], finish: str | None, counts: _TokenUsage | None, native: NativeReply | None
    ) -> Completion:
        settings, usage = self._settings, None
        if counts is not None:
            cost = counts.prompt_tokens * settings.input_price + counts.completion_tokens * settings.output_price
            usage = Usage(counts.prompt_tokens, counts.completion_tokens, cost / 1e6)
        ended: Literal["stop", "length"] = "length" if finish == "length" else "stop"
        return Completion(
            token_ids=ids,
            logprobs=[0.0] * len(ids),
            finish=ended,
            versions=[VersionSpan(0, 0, len(ids))],
            usage=usage,
            native=native,
        )


def _echo(own: dict[str, Any]) -> dict[str, Any]:
    """Converts a reply of the API to the message that the API accepts in later requests."""
    return {"role": "assistant", "content": None, **own}


def _result(call: str, message: Message | None) -> dict[str, Any]:
    """Returns the result of a call. An API needs one per call, even if it did not run or left the context."""
    if message is None:
        return {"role": "tool", "tool_call_id": call, "content": NO_RESULT}
    text = text_of(message["content"], lambda part: "[an image, below]")
    return {"role": "tool", "tool_call_id": call, "content": text}


def _images_of(results: Sequence[Message | None]) -> list[Any]:
    """Returns the images of results, for a message after all of them: results of an API contain text only."""
    shown: list[Any] = []
    for result in results:
        if result is not None and (images := list(image_parts([result]))):
            shown += [f"Images of the result of {result['name']}:\n", images]
    return shown


def _with_ids(said: _ChatMessage) -> _ChatMessage:
    """The message with an id for every call, which no other call of it has."""
    seen: set[str] = set()
    calls = []
    for k, call in enumerate(said.tool_calls or ()):
        given = call.id if call.id and call.id not in seen else f"call_{k}"
        while given in seen:
            given += "_"
        seen.add(given)
        calls.append(msgspec.structs.replace(call, id=given))
    return msgspec.structs.replace(said, tool_calls=calls or None)


def _native(said: _ChatMessage) -> NativeReply | None:
    """Returns the text with the API's native tool calls, or None without calls."""
    calls = [NativeCall(call.id, call.function.name, call.function.arguments) for call in said.tool_calls or ()]
    return NativeReply(said.content or "", calls) if calls else None


def _stopped(text: str, strings: Sequence[str], finish: str | None, renderer: Renderer) -> str:
    """The text up to and including the first stop string. APIs omit it, and accept only a few."""
    ends = [at + len(string) for string in strings if (at := text.find(string)) >= 0]
    if ends:
        return text[: min(ends)]
    return renderer.parser.completed(text) if finish == "stop" else text
