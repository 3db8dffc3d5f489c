"""Agent programs that talk to the proxy over HTTP, as they would to the OpenAI API."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch.testing import assert_close

from agentrl.chat.recognise import parser_for
from agentrl.chat.renderer import Renderer
from agentrl.chat.tokenizer import ByteTokenizer, HFTokenizer
from agentrl.config.agent import FormatSettings
from agentrl.engines.embedded.engine import TorchEngine
from agentrl.proxy.recorder import ProxyContext, Recorder
from agentrl.proxy.server import Proxy
from agentrl.proxy.web import listening
from agentrl.store.check import check
from agentrl.store.run_dir import RunDir
from agentrl.types.engine import Completion, Sampling
from agentrl.types.episode import Episode, VersionSpan
from agentrl.types.errors import StoreError
from agentrl.types.sample import training_samples
from tests.chat.families import gemma4_thinking
from tests.clock import Clock
from tests.engines.conftest import plain_logprobs
from tests.engines.vllm_world import small_model
from tests.proxy.world import ADD, Client, Parrot, connected, texts, user
from tests.waiting import turns, until_async


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
    reasons = [branch.reason for branch in episode.branches]
    assert (reasons.count("edit"), set(reasons)) == (1, {"edit", "fork"})
    roots = [node for node in episode.nodes if node.parent < 0]
    assert len(roots) == 2
    rows = training_samples(episode, [1.0] * len(episode.turns))
    assert sum(int(row.loss_mask.sum()) for row in rows) == episode.sampled_tokens
    for row in rows:
        plain = plain_logprobs(loaded.model, row.token_ids.tolist(), 0.8)
        trained = torch.from_numpy(row.loss_mask)
        # Float32: kernels differ by batch.
        assert_close(torch.from_numpy(row.behaviour_logprob)[trained], plain[trained[1:]], atol=3e-5, rtol=0)
    with RunDir.create(tmp_path / "run", {"command": "proxy", "recipe": {}, "base": "."}) as run:
        run.add(episode)
    assert check(tmp_path / "run").ok


async def test_calls_and_results_go_to_and_fro_in_the_api_s_form() -> None:
    parrot = Parrot('I add.\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>', "It is 1.", "No.")
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
        await client.say([user("And without tools?")])
        episode = await client.end(rewards={"ok": 1.0})
    assert (episode.tools, [turn.tools for turn in episode.turns]) == ([ADD], [None, None, []])
    assert "add" in parrot.prompts[0]
    assert parrot.prompts[1].startswith(parrot.prompts[0] + 'I add.\n<tool_call>\n{"name": "add"')
    assert [(branch.turn, branch.reason) for branch in episode.branches] == [(2, "fork")]
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


async def test_sessions_by_path_header_or_key_end_by_call_by_idleness_or_with_the_proxy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parrot, clock = Parrot(*["hi"] * 9), Clock(monkeypatch)
    async for client in connected(parrot, ByteTokenizer(), idle_s=600, taken={"by-key"}):
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
        assert set(client.proxy.sessions) == {"by-key", "by-header"}
        clock.forward(601)
        await until_async(lambda client=client: not client.proxy.sessions)
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
        assert "holds 'input_audio'" in await error([{"role": "user", "content": [{"type": "input_audio"}]}])
        assert "'stop' is ['']" in await error([user("a")], stop=[""])
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


async def test_a_client_s_retry_leaves_no_branch_that_it_never_saw(tmp_path: Path) -> None:
    """The reply that was lost on its way had the episode's full credit."""
    parrot = Parrot("lost", "seen", "lost too", "the end", "a", "b", "c", "d")
    async for client in connected(parrot, ByteTokenizer()):
        await client.say([user("hi")])
        seen = await client.say([user("hi")])
        assert seen["content"] == "seen"
        for _ in range(2):
            last = await client.say([user("hi"), seen, user("go on")])
        assert last["content"] == "the end"
        episode = await client.end(rewards={"solved": 1.0})
        assert texts(episode) == ["seen", "the end"]
        assert [(node.parent, node.kind) for node in episode.nodes] == [
            (-1, "prompt"), (0, "sampled"), (1, "observation"), (2, "sampled")
        ]  # fmt: skip
        assert [turn.node for turn in episode.turns] == [1, 3]
        with RunDir.create(tmp_path / "run", {"command": "proxy", "recipe": {}, "base": "."}) as run:
            run.add(episode)
        assert check(tmp_path / "run").ok
        # What was asked for again may be what the program goes on from; asked side by side, or as `n`, are branches.
        first = await client.say([user("hi")], "t")
        await client.say([user("hi")], "t")
        await client.say([user("hi"), first, user("go on")], "t")
        assert texts(await client.end("t")) == ["a", "b", "c"]


@pytest.mark.parametrize("back", ["", "Observation:"])
async def test_a_stop_string_cuts_the_reply_and_not_the_record(back: str, tmp_path: Path) -> None:
    """The program may send the reply back as it got it, or with the stop string, as smolagents does."""
    parrot = Parrot("I look.\nObservation: made up", "It is 1.", "one", "two")
    async for client in connected(parrot, ByteTokenizer()):
        opening = [user("Look.")]
        whole = await client.chat(opening, stop=["Observation:", "Ob", "never"])
        assert whole["choices"][0]["finish_reason"] == "stop"
        assert whole["choices"][0]["message"]["content"] == "I look.\n"
        assert whole["usage"]["completion_tokens"] == len("I look.\nOb")
        await client.end(reward=1.0)
        parrot.texts.insert(0, "I look.\nObservation: made up")
        opening = [user("Look.")]
        said = await client.say(opening, "t", stop="Observation:")
        echo = said | {"content": said["content"] + back}
        assert (await client.say([*opening, echo, user("Obs: 1")], "t"))["content"] == "It is 1."
        await client.say([*opening, said | {"content": said["content"].strip()}, user("Obs: 1")], "t")
        episode = await client.end("t")
    first, second, third = episode.turns
    assert first.text == "I look.\nObservation:"
    assert parrot.prompts[2].startswith(parrot.prompts[1] + "I look.\nObservation:<|im_end|>\n<|im_start|>user\nObs: 1")
    assert episode.nodes[second.node].parent == first.node + 1
    (branch,) = episode.branches
    assert (branch.turn, branch.reason) == (third.index, "edit")
    assert [message["content"] for message in branch.messages or ()] == ["Look.", "I look.", "Obs: 1"]
    assert episode.sampled_tokens == len("I look.\nObservation:") + len("It is 1.") + len("one") + 2
    with RunDir.create(tmp_path / "run", {"command": "proxy", "recipe": {}, "base": "."}) as run:
        run.add(episode)
    assert check(tmp_path / "run").ok


async def test_a_call_before_a_stop_string_is_a_call() -> None:
    call = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    async for client in connected(Parrot(f"{call}\nObservation:", call), ByteTokenizer()):
        whole = await client.chat([user("Add.")], tools=[ADD], stop="Observation:")
        choice = whole["choices"][0]
        assert (choice["finish_reason"], len(choice["message"]["tool_calls"])) == ("tool_calls", 1)
        broken = await client.say([user("Add.")], tools=[ADD], stop=['"arguments"'])
        assert broken == {"role": "assistant", "content": '<tool_call>\n{"name": "add", '}


async def test_several_replies_to_one_prompt_are_asked_for_at_once() -> None:
    async for client in connected(Slow(*"abcd"), ByteTokenizer()):
        await asyncio.gather(client.say([user("hi")]), client.say([user("hi")]))
        await client.chat([user("ho")], n=2)
        assert sorted(texts(await client.end())) == ["a", "b", "c", "d"]


class Slow(Parrot):
    """Replies to two at a time."""

    def __init__(self, *texts: str) -> None:
        super().__init__(*texts)
        self.two = asyncio.Barrier(2)

    async def generate(self, token_ids: Any, sampling: Sampling, session: str) -> Completion:
        completion = await super().generate(token_ids, sampling, session)
        await self.two.wait()
        return completion


class Held(Parrot):
    """Replies when it is told to."""

    def __init__(self, *texts: str) -> None:
        super().__init__(*texts)
        self.asked, self.free = asyncio.Event(), asyncio.Event()

    async def generate(self, token_ids: Any, sampling: Sampling, session: str) -> Completion:
        completion = await super().generate(token_ids, sampling, session)
        self.asked.set()
        await self.free.wait()
        return completion


async def test_a_reply_to_a_client_that_hung_up_is_no_branch() -> None:
    held = Held("nobody hears this", "seen", "again")
    async for client in connected(held, ByteTokenizer()):
        gone = asyncio.create_task(client.say([user("hi")]))
        await held.asked.wait()
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        url, body = f"{client.url}/s/s/v1/chat/completions", {"messages": [user("hi")]}
        retry = {"X-Stainless-Retry-Count": "1"}
        again = asyncio.create_task(client.http.post(url, json=body, headers=retry))
        await until_async(lambda: len(held.prompts) == 2)
        held.free.set()
        await again
        assert texts(await client.end()) == ["seen"]
        # Hung up, and nothing asked again: nothing of it was seen.
        held.asked.clear()
        held.free.clear()
        gone = asyncio.create_task(client.say([user("hi")]))
        await held.asked.wait()
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        recorder = client.proxy.sessions["s"]
        served = client.server
        await until_async(lambda served=served: not all(each.transport for each in served.connections))  # it has heard
        held.free.set()
        await until_async(lambda recorder=recorder: recorder.turns)
        before = len(client.stored)
        assert (await (await client.http.post(f"{client.url}/s/s/end", json={})).json()) == {}
        assert len(client.stored) == before


async def test_examples_in_the_first_request_are_prompt_and_no_edit() -> None:
    examples = [
        user("2 + 2?"),
        {"role": "assistant", "content": "4"},
        user("3 + 3?"),
        {"role": "assistant", "content": "6"},
    ]
    async for client in connected(Parrot("8", "9", "10", "11"), ByteTokenizer()):
        said = await client.say([*examples, user("4 + 4?")])
        await client.say([*examples, user("4 + 4?"), said, user("And one more?")])
        await client.say([*examples, user("5 + 5?")])
        edited = [*examples, user("4 + 4?"), {"role": "assistant", "content": "made up"}, user("And one more?")]
        await client.say(edited)
        noted = [(branch.turn, branch.reason) for branch in (await client.end()).branches]
        assert noted == [(2, "fork"), (3, "edit")]


async def test_an_end_that_cannot_be_stored_is_refused_and_loses_nothing() -> None:
    async for client in connected(Parrot("hi"), ByteTokenizer()):
        await client.say([{"role": "user", "content": "caf\udce9"}])
        for body, said in [
            ({"rewards": {"a": float("nan")}}, "reward 'a' is nan (float)"),
            ({"rewards": {"a": "1"}}, "reward 'a' is '1' (str)"),
            ({"rewards": [1]}, "rewards are [1] (list)"),
            ({"rewards": {"a": 1e308, "b": 1e308}}, "the sum of the rewards is inf"),
            ([], "the body must be a JSON object"),
        ]:
            refused = await client.http.post(f"{client.url}/s/s/end", json=body)
            assert refused.status == 400
            assert said in (await refused.json())["error"]["message"]
        episode = await client.end(rewards={"a": True, "b": 0.5}, answer=42)
    assert (episode.reward, episode.answer, episode.prompt[0]["content"]) == (1.5, "42", "caf?")


async def test_a_call_within_a_thought_that_the_prompt_opens_is_none() -> None:
    """Gemma 4's template opens one behind results: what stands there before its end is a thought."""
    tokenizer, call = gemma4_thinking(), "<|tool_call>call:add{a:1}<tool_call|>"

    class Whole(Parrot):
        async def generate(self, token_ids: Any, sampling: Sampling, session: str) -> Completion:
            ids = tokenizer.encode(self.texts.pop(0) + "<|tool_response>", special=True)
            return Completion(
                token_ids=ids, logprobs=[-1.0] * len(ids), finish="stop", versions=[VersionSpan(0, 0, len(ids))]
            )

    engine: Any = Whole(call, f"Or {call}", f"Or so.<channel|>{call}")
    renderer = Renderer(tokenizer, parser_for(FormatSettings(), tokenizer, [ADD]), [ADD])
    context = ProxyContext(engine, renderer, Sampling(), seed=0)
    recorder, opening = Recorder("s", context), [user("Add 1.")]
    (first,) = await recorder.reply({"messages": opening, "tools": [ADD]})
    result = {"role": "tool", "tool_call_id": first.message["tool_calls"][0]["id"], "content": "1"}
    both = await recorder.reply({"messages": [*opening, first.message, result], "tools": [ADD]}, n=2)
    assert ["tool_calls" in reply.message for reply in both] == [False, True]


class Sessions:
    """A proxy's sessions s0, s1 and s2, each with one turn."""

    def __init__(self, **settings: Any) -> None:
        self.stored: list[str] = []
        renderer = Renderer(ByteTokenizer(), parser_for(FormatSettings(use="hermes"), ByteTokenizer(), []), [])
        context = ProxyContext(Parrot("a", "b", "c"), renderer, Sampling(), seed=0)
        self.proxy = Proxy(context, self.store, model="m", taken=set(), **settings)

    def store(self, episode: Episode) -> None:
        if episode.answer == "broken":
            raise StoreError("full")
        self.stored.append(episode.id)

    async def say(self) -> None:
        for name in ("s0", "s1", "s2"):
            await self.proxy.recorder(name).reply({"messages": [user("Go.")]})


async def test_a_session_that_is_scored_when_the_proxy_stops_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, stopping, clock = asyncio.Event(), asyncio.Event(), Clock(monkeypatch)

    async def slow(episode: Episode) -> Episode:
        begun.set()
        await stopping.wait()
        return episode

    sessions = Sessions(idle_s=600, score=slow)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(listening(sessions.proxy.app(), "127.0.0.1", 0))
        await sessions.say()
        clock.forward(601)
        await begun.wait()
        stops = asyncio.create_task(stack.pop_all().aclose())
    await turns()  # it stops meanwhile, but for the scoring
    assert not stops.done()
    stopping.set()
    await stops
    assert sorted(sessions.stored) == ["s0", "s1", "s2"]


@pytest.mark.parametrize("idle", [True, False])
async def test_a_session_that_cannot_be_stored_does_not_take_the_others_along(
    idle: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)

    async def scored(episode: Episode) -> Episode:
        return msgspec.structs.replace(episode, answer="broken" if episode.id == "s0" else None)

    sessions = Sessions(idle_s=600, score=scored)
    async with listening(sessions.proxy.app(), "127.0.0.1", 0):
        await sessions.say()
        if idle:
            clock.forward(601)
            await until_async(lambda: not len(sessions.proxy))
    assert sorted(sessions.stored) == ["s1", "s2"]
    assert "could not be stored: full" in caplog.text


async def test_a_program_may_send_arguments_back_as_an_object() -> None:
    parrot = Parrot('<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>', "It is 1.")
    async for client in connected(parrot, ByteTokenizer()):
        said = await client.say([user("Add 1.")], tools=[ADD])
        call = said["tool_calls"][0]
        call["function"]["arguments"] = json.loads(call["function"]["arguments"])
        result = {"role": "tool", "tool_call_id": call["id"], "content": "1"}
        await client.say([user("Add 1."), said, result], tools=[ADD])
        episode = await client.end()
    assert [each.arguments for each in episode.turns[0].calls] == [{"a": 1}]
    assert episode.branches == []
