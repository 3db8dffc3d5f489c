"""Requests of other people's programs: what the model is shown, what the program gets, what is refused."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web

from agentrl.chat.recognise import parser_for
from agentrl.chat.renderer import Renderer
from agentrl.chat.tokenizer import ByteTokenizer
from agentrl.config.agent import FormatSettings
from agentrl.proxy.recorder import ProxyContext
from agentrl.proxy.server import Proxy
from agentrl.proxy.web import DIALECTS
from agentrl.types.engine import Completion, Engine, Sampling
from agentrl.types.episode import VersionSpan

from .cases import Case, played

PATHS = {path.rpartition("/")[2]: path for dialect in DIALECTS for path in dialect.paths} | {
    "chat": "/v1/chat/completions",
    "gemini": "/v1beta/models/m:generateContent",
}
"""The path of a dialect by the name of its file."""

KEYS = ["says", "then", "thread", "shown", "hidden", "turns", "gives", "refused"]
"""What the model says to each request in turn, further requests; what is then right: roles and contents of the first
prompt; words of the last prompt in this order; words that are not in it; how many messages it has; what the response
holds; words of the refusal."""

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
GIVEN: dict[str, Any] = {
    "$tools chat": [{"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": SCHEMA}}],
    "$tools responses": [{"type": "function", "name": "add", "description": "Adds.", "parameters": SCHEMA}],
    "$tools messages": [{"name": "add", "description": "Adds.", "input_schema": SCHEMA}],
    "$tools gemini": [{"functionDeclarations": [{"name": "add", "description": "Adds.", "parameters": SCHEMA}]}],
    "$half": "half \ud835 of it",
    "$png": "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==",
}
"""What cases name by a word."""


class Script(Engine):
    """An engine that says what the case of the session says."""

    name, trainable, max_context = "script", True, 100_000

    def __init__(self) -> None:
        self.says: dict[str, list[str]] = {}
        self.prompts: dict[str, list[Sequence[int]]] = {}

    async def generate(self, token_ids: Sequence[int], sampling: Sampling, session: str) -> Completion:
        self.prompts.setdefault(session, []).append(token_ids)
        ids = ByteTokenizer().encode(self.says[session].pop(0) + "<|im_end|>", special=True)
        spans = [VersionSpan(0, 0, len(ids))]
        return Completion(token_ids=ids, logprobs=[-1.0] * len(ids), finish="stop", versions=spans)

    def end_session(self, session: str) -> None: ...


class Door:
    """A proxy, and a client that speaks to it."""

    def __init__(self, engine: Script, proxy: Proxy, http: aiohttp.ClientSession) -> None:
        self.engine, self.proxy, self.http = engine, proxy, http

    async def ask(self, path: str, session: str, body: Any) -> tuple[int, Any]:
        """The status of the response, and its body."""
        async with self.http.post(path, json=body, headers={"X-Session-Id": session}) as response:
            return response.status, await response.json()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def door() -> AsyncIterator[Door]:
    engine, tokenizer = Script(), ByteTokenizer()
    renderer = Renderer(tokenizer, parser_for(FormatSettings(use="hermes"), tokenizer, []), [])
    context = ProxyContext(engine, renderer, Sampling(max_tokens=100), seed=0)
    proxy = Proxy(context, lambda episode: None, model="m", taken=set(), idle_s=600)
    runner = web.AppRunner(proxy.app(), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with aiohttp.ClientSession(f"http://127.0.0.1:{runner.addresses[0][1]}") as http:
        yield Door(engine, proxy, http)
    await runner.cleanup()


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(("dialect", "case"), played("requests", ["body"], KEYS))
async def test_a_request(dialect: str, case: Case, door: Door) -> None:
    assert set(case) & {"thread", "shown", "gives", "refused"}, "a case says what is right"
    session, said = f"{dialect}: {case['name']}".encode().hex(), case.get("says", "ok")
    door.engine.says[session] = [said] if isinstance(said, str) else list(said)
    given = {key.removesuffix(f" {dialect}"): value for key, value in GIVEN.items()}
    status, answer = 0, None
    for body in [case["body"], *case.get("then", ())]:
        status, answer = await door.ask(PATHS[dialect], session, filled({"model": "m", **body}, given))
        given |= named(answer)
    if "refused" in case:
        assert (status, case["refused"] in json.dumps(answer)) == (400, True), answer
        return
    assert status == 200, answer
    recorder, prompt = door.proxy.sessions[session], door.engine.prompts[session][-1]
    text = ByteTokenizer().decode(prompt)
    if "thread" in case:
        assert [[message["role"], message["content"]] for message in recorder.episode().prompt] == case["thread"]
    assert in_order(case.get("shown", []), text), text
    assert not [words for words in case.get("hidden", []) if words in text], text
    if "turns" in case:
        assert list(prompt).count(ByteTokenizer.controls["<|im_start|>"]) == case["turns"] + 1
    assert holds(answer, case.get("gives", {})), answer
    assert recorder.episode().branches == []


def filled(value: Any, given: dict[str, Any]) -> Any:
    """A body with what stands for its words."""
    if isinstance(value, str):
        return given.get(value, value)
    if isinstance(value, dict):
        return {key: filled(item, given) for key, item in value.items()}
    if not isinstance(value, list):
        return value
    made = [(item, filled(item, given)) for item in value]
    return [one for item, new in made for one in (new if item == "$reply" and isinstance(new, list) else [new])]


def named(answer: Any) -> dict[str, Any]:
    """What later requests of a case may name of a response: the reply as the program sends it back, its calls' ids."""
    message = (answer.get("choices") or [{}])[0].get("message")
    items = answer.get("output") or answer.get("content") or (message or {}).get("tool_calls") or []
    gemini = (answer.get("candidates") or [{}])[0].get("content")
    reply = message or gemini or answer.get("output") or {"role": "assistant", "content": answer.get("content")}
    ids = [item.get("call_id") or item["id"] for item in items if item.get("type") != "text" and "content" not in item]
    return {"$reply": reply, "$id": answer.get("id")} | {f"$call{number}": id for number, id in enumerate(ids, 1)}


def in_order(words: Sequence[str], text: str) -> bool:
    """Whether a text has all words, one behind the other."""
    for word in words:
        _, found, text = text.partition(word)
        if not found:
            return False
    return True


def holds(given: Any, wanted: Any) -> bool:
    """Whether a response has what is wanted: objects may have more."""
    if isinstance(wanted, dict):
        return isinstance(given, dict) and all(k in given and holds(given[k], value) for k, value in wanted.items())
    if isinstance(wanted, list):
        return isinstance(given, list) and len(given) == len(wanted) and all(map(holds, given, wanted))
    return bool(given == wanted)
