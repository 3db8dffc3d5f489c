"""A small world for tests of the proxy: a program that speaks to it, and an engine that says what it was told."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
from aiohttp import web

from agentrl.chat.recognise import parser_for
from agentrl.chat.renderer import Renderer
from agentrl.chat.tokenizer import ByteTokenizer
from agentrl.config.agent import FormatSettings
from agentrl.config.limits import Limits
from agentrl.engines.stops import StopStrings, cut
from agentrl.proxy.recorder import ProxyContext
from agentrl.proxy.server import Proxy
from agentrl.types.engine import Completion, Engine, Sampling
from agentrl.types.episode import Episode, VersionSpan
from agentrl.types.errors import EngineError
from agentrl.types.parts.intake import Images

ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    },
}


class Parrot(Engine):
    """Says what it was told to, in bytes; for what a random model would hardly ever say."""

    name, trainable, max_context = "parrot", True, 10_000

    def __init__(self, *texts: str) -> None:
        self.texts, self.prompts, self.broken = list(texts), [], False

    async def generate(self, token_ids: Any, sampling: Sampling, session: str) -> Completion:
        if self.broken:
            raise EngineError("out of order")
        self.prompts.append(ByteTokenizer().decode(token_ids))
        ids = ByteTokenizer().encode(self.texts.pop(0) + "<|im_end|>", special=True)
        whole = Completion(
            token_ids=ids, logprobs=[-1.0] * len(ids), finish="stop", versions=[VersionSpan(0, 0, len(ids))]
        )
        count = StopStrings(ByteTokenizer().decode, sampling.stop).first(ids) if sampling.stop else None
        return whole if count is None else cut(whole, count)


class Client:
    """An agent program."""

    def __init__(self, url: str, http: aiohttp.ClientSession, proxy: Proxy, stored: list[Episode], server: Any) -> None:
        self.url, self.http, self.proxy, self.stored, self.server = url, http, proxy, stored, server

    async def chat(self, messages: list[dict[str, Any]], session: str = "s", **more: Any) -> dict[str, Any]:
        reply = await self.http.post(f"{self.url}/s/{session}/v1/chat/completions", json={"messages": messages, **more})
        return await reply.json()

    async def say(self, messages: list[dict[str, Any]], session: str = "s", **more: Any) -> dict[str, Any]:
        return (await self.chat(messages, session, **more))["choices"][0]["message"]

    async def end(self, session: str = "s", **body: Any) -> Episode:
        assert (await self.http.post(f"{self.url}/s/{session}/end", json=body)).status == 200
        return self.stored[-1]


async def connected(
    engine: Any, tokenizer: Any, idle_s: float = 60.0, taken: set[str] | None = None
) -> AsyncIterator[Client]:
    stored: list[Episode] = []
    renderer = Renderer(tokenizer, parser_for(FormatSettings(use="hermes"), tokenizer, []), [])
    take = Images(engine, Limits()).take
    context = ProxyContext(engine, renderer, Sampling(temperature=0.8, max_tokens=12), seed=0, take_image=take)
    proxy = Proxy(context, stored.append, model="m", taken=taken or set(), idle_s=idle_s)
    runner = web.AppRunner(proxy.app(), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with aiohttp.ClientSession() as http:
        yield Client(f"http://127.0.0.1:{runner.addresses[0][1]}", http, proxy, stored, runner.server)
    await runner.cleanup()


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def texts(episode: Episode) -> list[str]:
    return [turn.text for turn in episode.turns]
