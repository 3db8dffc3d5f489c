"""The OpenAI-compatible engine: samples text from an API that takes text and images, for rollouts and evaluation.

The recipe's renderer turns the text into (byte) tokens, so the episode uses the same session, tools, rewards and store
as any other. Its episodes are not trainable. The API's token counts and their cost are recorded.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from agentrl.chat.formats.parser import definitions_of, read_json
from agentrl.chat.renderer import Renderer
from agentrl.config.engine import EngineSettings
from agentrl.engines.http import HttpClient, Refused
from agentrl.engines.replicas import Replicas
from agentrl.types.engine import Completion, ContextOverflow, Sampling
from agentrl.types.episode import Usage, VersionSpan
from agentrl.types.errors import AgentRLError, EngineError, RecipeError
from agentrl.types.parts.content import image_parts, joined, text_of
from agentrl.types.parts.image import data_url
from agentrl.types.task import Message, Task

STOPS = 4
"""Maximum number of stop strings that an API accepts."""

TOO_LONG = ("context_length", "maximum context", "too many tokens", "prompt is too long")
"""Substrings of the APIs' errors about a conversation that exceeds the context."""


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
        said: messages of the API, by their position in the conversation.
        read: reads an image by its hash.
    """

    messages: list[Message]
    renderer: Renderer
    definitions: list[dict[str, Any]]
    said: dict[int, dict[str, Any]] = field(default_factory=dict)
    read: Callable[[str], bytes] | None = None

    def sent(self, content: Any) -> Any:
        """A content as the API takes it: images as data URLs."""
        if isinstance(content, str):
            return content
        return [part if part["type"] == "text" else self._image(part) for part in content]

    def _image(self, part: dict[str, Any]) -> dict[str, Any]:
        if self.read is None:
            raise AgentRLError("the engine was not told how images are read", remedy="call use_images")
        return {"type": "image_url", "image_url": {"url": data_url(self.read(part["blob"]))}}


class OpenAIEngine:
    """Samples from `/chat/completions`.

    Args:
        renderer: the recipe's renderer with the byte tokenizer; its parser writes the API's tool calls as text.
        definitions: tool definitions, sent with every request if `native_tools`.

    Raises:
        RecipeError: the environment variable with the key is not set (unless the API is on this machine).
    """

    name = "openai"
    trainable = False
    sees = True
    checkpoint_names = takes_adapters = False
    max_context = 1_000_000_000  # the API counts tokens itself, and rejects conversations that are too long

    def __init__(self, settings: EngineSettings, renderer: Renderer, definitions: list[dict[str, Any]]) -> None:
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

    def called(self, who: str) -> None:
        """Names whose engine it is, for messages."""
        self._api.who = who

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

    def begin_session(self, session: str, task: Task, messages: list[Message], seed: int) -> None:
        """Keeps a reference to the session's messages, which grow during the episode."""
        self._live[session] = _Live(messages, self._renderer, self._definitions)

    def use_tools(self, session: str, renderer: Renderer) -> None:
        """Sets the session's tools if they differ from the recipe's."""
        live = self._live[session]
        live.renderer = renderer
        live.definitions = definitions_of(renderer.parser) if self._settings.native_tools else []

    def use_images(self, session: str, read: Callable[[str], bytes]) -> None:
        """How the images of the episode are read, by their hash."""
        self._live[session].read = read

    async def generate(self, token_ids: Sequence[int], sampling: Sampling, session: str) -> Completion:
        """Samples the next message, as text in the recipe's format.

        Raises:
            ContextOverflow: the API rejects the conversation as too long.
            EngineError: no reply.
            Refused: the API rejects the request.
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
        live.said[len(live.messages)] = msgspec.to_builtins(choice.message)
        text = _as_text(choice.message, live.renderer)
        if sampling.stop and not choice.message.tool_calls:
            text = _stopped(text, sampling.stop, choice.finish_reason, live.renderer)
        return self._completion(live.renderer.demonstrate(text, token_ids), choice.finish_reason, reply.usage)

    async def score(
        self, prefix: Sequence[int], continuations: Sequence[Sequence[int]], at: Sequence[int] | None = None
    ) -> list[list[float]]:
        """Raises TypeError: the API has no log-probabilities of given tokens."""
        raise TypeError("the openai engine cannot score: use torch or vllm")

    async def update(self, weights: Any, version: int) -> None:
        """Raises TypeError: the API takes no weights."""
        raise TypeError("the openai engine cannot be trained: use torch or vllm")

    def end_session(self, session: str) -> None:
        """Drops the reference to the conversation."""
        self._live.pop(session, None)

    async def close(self) -> None:
        """Closes the connections."""
        await self._client.close()

    def _as_sent(self, live: _Live) -> list[dict[str, Any]]:
        """The conversation in the API's format: its own messages unchanged, tool results with the ids of its calls."""
        messages, said = live.messages, live.said
        if not live.definitions and not any(own.get("tool_calls") for own in said.values()):
            described = live.renderer.described(messages)
            return [
                {"role": "user", "content": live.sent(joined("<tool_response>\n", said, "\n</tool_response>"))}
                if role == "tool"
                else {"role": role, "content": live.sent(said)}
                for role, said in ((message["role"], message["content"]) for message in described)
            ]
        sent: list[dict[str, Any]] = []
        waiting: list[str] = []  # ids of the last message's calls that have no result yet
        shown: list[Any] = []  # images of results, sent behind all of them: results of an API hold text only
        for index, message in enumerate(messages):
            if shown and (index in said or message["role"] != "tool"):
                sent.append({"role": "user", "content": live.sent(joined(*shown))})
                shown = []
            if index in said:
                own = {"role": "assistant", **{name: value for name, value in said[index].items() if value is not None}}
                waiting = [call["id"] for call in own.get("tool_calls", ())]
                sent.append({"content": None, **own})
            elif message["role"] == "tool" and waiting:
                text = text_of(message["content"], lambda part: "[an image, below]")
                sent.append({"role": "tool", "tool_call_id": waiting.pop(0), "content": text})
                if images := list(image_parts([message])):
                    shown += [f"Images of the result of {message['name']}:\n", images]
            else:
                # An error about a tool call that was written as text: it has no call id.
                role = "user" if message["role"] == "tool" else message["role"]
                sent.append({"role": role, "content": live.sent(message["content"])})
        if shown:
            sent.append({"role": "user", "content": live.sent(joined(*shown))})
        return sent

    def _completion(self, ids: list[int], finish: str | None, counts: _TokenUsage | None) -> Completion:
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
        )


def _as_text(said: _ChatMessage, renderer: Renderer) -> str:
    text = said.content or ""
    calls = []
    for call in said.tool_calls or ():
        try:
            arguments = read_json(call.function.arguments or "{}")
            calls.append((call.function.name, arguments if isinstance(arguments, dict) else {"": arguments}))
        except ValueError:
            # Broken JSON stays broken: the parser tells the model what is wrong with it.
            text += f'\n<tool_call>\n{{"name": "{call.function.name}", "arguments": {call.function.arguments}}}'
    return renderer.parser.format(text, calls) if calls else text


def _stopped(text: str, strings: Sequence[str], finish: str | None, renderer: Renderer) -> str:
    """The text up to and including the first stop string. APIs omit it, and accept only a few."""
    ends = [at + len(string) for string in strings if (at := text.find(string)) >= 0]
    if ends:
        return text[: min(ends)]
    return renderer.parser.completed(text) if finish == "stop" else text
