"""Agent programs that talk to the proxy over HTTP, as they would to the OpenAI API."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import torch
from aiohttp import web
from torch.testing import assert_close

from agentrl.chat.tokenizer import ByteTokenizer, HFTokenizer
from agentrl.engines.base import Completion, Sampling
from agentrl.engines.torch import TorchEngine
from agentrl.episode.record import Episode, VersionSpan
from agentrl.errors import EngineError
from agentrl.proxy.recorder import Voice
from agentrl.proxy.server import Proxy
from agentrl.store.check import check
from agentrl.store.run_dir import RunDir
from agentrl.train.row import rows_of
from tests.engines.conftest import plain_logprobs
from tests.engines.vllm_world import small_model

ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    },
}


class Parrot:
    """Says what it was told to, in bytes; for what a random model would hardly ever say."""

    name, trainable, max_context = "parrot", True, 10_000

    def __init__(self, *texts: str) -> None:
        self.texts, self.prompts, self.broken = list(texts), [], False

    async def generate(self, token_ids: Any, sampling: Sampling, session: str) -> Completion:
        if self.broken:
            raise EngineError("out of order")
        self.prompts.append(ByteTokenizer().decode(token_ids))
        ids = ByteTokenizer().encode(self.texts.pop(0) + "<|im_end|>", special=True)
        return Completion(
            token_ids=ids, logprobs=[-1.0] * len(ids), finish="stop", versions=[VersionSpan(0, 0, len(ids))]
        )

    def end_session(self, session: str) -> None: ...


class Client:
    """An agent program."""

    def __init__(self, url: str, http: aiohttp.ClientSession, proxy: Proxy, stored: list[Episode]) -> None:
        self.url, self.http, self.proxy, self.stored = url, http, proxy, stored

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
    voice = Voice(engine, tokenizer, "hermes", Sampling(temperature=0.8, max_tokens=12), seed=0)
    proxy = Proxy(voice, stored.append, model="m", taken=taken or set(), idle_s=idle_s)
    runner = web.AppRunner(proxy.app(), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with aiohttp.ClientSession() as http:
        yield Client(f"http://127.0.0.1:{runner.addresses[0][1]}", http, proxy, stored)
    await runner.cleanup()


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


async def test_what_is_recorded_is_what_the_model_saw_and_said(tmp_path: Path) -> None:
    """A real model: turns, parallel branches, a retry and an edited history; every log-probability is the model's."""
    loaded = small_model(tmp_path / "model")
    engine = TorchEngine(loaded.model, max_context=1024)
    async for client in connected(engine, HFTokenizer(loaded.tokenizer)):
        opening = [{"role": "system", "content": "Be brief."}, user("Count to 3.")]
        first = await client.say(opening)
        both = await asyncio.gather(
            client.say([*opening, first, user("Go on.")]), client.say([*opening, first, user("Stop.")])
        )
        await client.say([*opening, first, user("Go on."), both[0], user("And then?")])
        await client.say(opening)
        await client.say([*opening, {"role": "assistant", "content": "made up"}, user("Go on.")])
        many = await client.chat([*opening, first, user("Thrice!")], n=3)
        assert len(many["choices"]) == 3
        episode = await client.end(rewards={"solved": 1.0, "style": -0.5}, answer="3")
    await engine.close()
    assert episode.reward == 0.5
    assert episode.trainable
    assert len(episode.turns) == 9
    assert [drift.kind for drift in episode.drift] == ["context_edit"]
    roots = [node for node in episode.nodes if node.parent < 0]
    assert len(roots) == 2
    rows = rows_of(episode, [1.0] * len(episode.turns))
    assert sum(int(row.loss_mask.sum()) for row in rows) == episode.sampled_tokens
    for row in rows:
        plain = plain_logprobs(loaded.model, row.token_ids.tolist(), 0.8)
        trained = torch.from_numpy(row.loss_mask)
        assert_close(torch.from_numpy(row.logprobs)[trained], plain[trained[1:]], atol=1e-5, rtol=0)
    with RunDir.create(tmp_path / "run", {"command": "proxy", "recipe": {}, "base": "."}) as run:
        run.add(episode)
    assert check(tmp_path / "run").ok


async def test_calls_and_results_go_to_and_fro_in_the_api_s_form() -> None:
    parrot = Parrot('I add.\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>', "It is 1.")
    async for client in connected(parrot, ByteTokenizer()):
        opening = [user("Add 1.")]
        whole = await client.chat(opening, tools=[ADD])
        said = whole["choices"][0]["message"]
        assert whole["choices"][0]["finish_reason"] == "tool_calls"
        assert said["content"] == "I add."
        call = said["tool_calls"][0]
        assert json.loads(call["function"]["arguments"]) == {"a": 1}
        # Programs echo a reply in their own way: other spaces, other keys, parts instead of a string.
        echo = {
            "role": "assistant",
            "content": [{"type": "text", "text": "I add."}],
            "refusal": None,
            "tool_calls": [{**call, "function": {"name": "add", "arguments": '{"a":1}'}}],
        }
        result = {"role": "tool", "tool_call_id": call["id"], "content": "1"}
        assert (await client.say([*opening, echo, result], tools=[ADD]))["content"] == "It is 1."
        episode = await client.end(rewards={"ok": 1.0})
    assert "add" in parrot.prompts[0]
    assert parrot.prompts[1].startswith(parrot.prompts[0] + 'I add.\n<tool_call>\n{"name": "add"')
    assert episode.drift == []
    assert [(c.name, c.arguments, c.result) for c in episode.turns[0].calls] == [("add", {"a": 1}, "1")]


async def test_a_stream_says_the_same_piece_by_piece() -> None:
    call = '<tool_call>\n{"name": "add", "arguments": {"a": 2}}\n</tool_call>'
    async for client in connected(Parrot(call), ByteTokenizer()):
        body = {"messages": [user("Add.")], "tools": [ADD], "stream": True, "stream_options": {"include_usage": True}}
        reply = await client.http.post(f"{client.url}/s/s/v1/chat/completions", json=body)
        lines = [line for line in (await reply.text()).split("\n\n") if line]
    assert reply.content_type == "text/event-stream"
    assert lines[-1] == "data: [DONE]"
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    assert [chunk["object"] for chunk in chunks] == ["chat.completion.chunk"] * 4
    assert chunks[1]["choices"][0]["delta"]["tool_calls"][0]["function"]["name"] == "add"
    assert chunks[2]["choices"][0]["finish_reason"] == "tool_calls"
    assert chunks[3]["usage"]["total_tokens"] > 0


async def test_sessions_by_path_header_or_key_end_by_call_by_idleness_or_with_the_proxy() -> None:
    parrot = Parrot(*["hi"] * 9)
    async for client in connected(parrot, ByteTokenizer(), idle_s=0.4, taken={"by-key"}):
        plain = f"{client.url}/v1/chat/completions"
        body = {"messages": [user("Hello.")]}
        await client.http.post(plain, json=body, headers={"Authorization": "Bearer by-key"})
        await client.http.post(plain, json=body, headers={"Authorization": "Bearer k", "X-Session-Id": "by-header"})
        await client.say([user("Hello.")], "by-path")
        assert set(client.proxy.sessions) == {"by-key", "by-header", "by-path"}
        await client.end("by-path", rewards={"ok": 1})
        nobody = await client.http.post(plain, json=body)
        assert nobody.status == 400
        assert "belongs to no session" in (await nobody.json())["error"]["message"]
        while client.proxy.sessions:
            await asyncio.sleep(0.05)
        await client.say([user("Hello.")], "late")
        stored = client.stored
    assert sorted(episode.id for episode in stored) == ["by-header", "by-key~1", "by-path", "late"]
    assert [episode.scored for episode in stored].count(True) == 1


async def test_what_cannot_be_recorded_is_refused_and_a_broken_engine_leaves_no_trace() -> None:
    parrot = Parrot("hi", "ho")
    async for client in connected(parrot, ByteTokenizer()):

        async def error(messages: Any, client: Client = client, **more: Any) -> str:
            return (await client.chat(messages, **more))["error"]["message"]

        assert "list of messages" in await error([])
        assert "only text" in await error([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}])
        assert "'stop'" in await error([user("a")], stop=["\n"])
        assert "tokens, the engine takes 10000" in await error([user("long " * 3000)])
        said = await client.say([user("a")])
        assert "nothing to reply to" in await error([user("a"), said])
        parrot.broken = True
        failed = await client.chat([user("a"), said, user("b")])
        assert failed["error"]["code"] == "engine_error"
        parrot.broken = False
        await client.say([user("a"), said, user("b")])
        episode = await client.end()
    assert len(episode.turns) == 2
    assert [node.kind for node in episode.nodes] == ["prompt", "sampled", "observation", "sampled"]
