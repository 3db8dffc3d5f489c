"""The failure table with a real engine client and a real server that misbehaves."""

from __future__ import annotations

import asyncio
import gc
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from agentrl.chat.tokenizer import ByteTokenizer
from agentrl.engines import replicas
from agentrl.engines.vllm.engine import NATIVE, VLLMEngine
from agentrl.engines.vllm.settings import VLLMSettings
from agentrl.rollouts.builder import Parts
from agentrl.rollouts.context import RolloutContext
from agentrl.rollouts.faults.budgets import EngineDown
from agentrl.rollouts.garbage import rare_collections
from agentrl.rollouts.specs import missing
from agentrl.store.check import check
from agentrl.store.run_dir import RunDir
from agentrl.types.episode import Episode
from agentrl.types.errors import DeadPolicy
from agentrl.types.sample import training_samples
from tests.clock import Clock
from tests.rollouts.world import collect, make_parts, specs
from tests.waiting import until_async

BYTES = ByteTokenizer()
FAULTS = ("500", "disconnect", "hang", "half", "garbage")


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(replicas, "LONGEST_PAUSE_S", 0.02)


class Server:
    """Serves a script of two turns in bytes. `faults` says what is wrong with the next completions (None: nothing).

    Attributes:
        hangs: called when a completion hangs.
    """

    def __init__(self, faults: Iterable[str | None] = ()) -> None:
        self.faults = iter(faults)
        self.completions = 0
        self.hangs: Callable[[], None] = lambda: None

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        body = await request.json() if request.can_read_body else {}
        match request.path:
            case "/v1/models":
                return web.json_response({"data": [{"id": "m", "max_model_len": 100_000}]})
            case "/tokenize":
                return web.json_response({"tokens": BYTES.encode(body["prompt"], special=True)})
            case "/detokenize":
                return web.json_response({"prompt": BYTES.decode(body["tokens"])})
            case "/v1/completions":
                choice = {"index": 0, "token_ids": [0], "logprobs": {"token_logprobs": [0.0]}}
                return web.json_response({"choices": [choice]})
            case "/health":
                return web.json_response({})
            case path if path == NATIVE and len(body["token_ids"]) > 1:
                return await self._complete(request, body["token_ids"])
            case path if path == NATIVE:  # asked at the start, whether there is such a page
                return web.json_response({"choices": []})
        return web.Response(status=404)

    async def _complete(self, request: web.Request, prompt: list[int]) -> web.StreamResponse:
        self.completions += 1
        name, arguments = ("echo", {"text": "x"}) if prompt.count(257) == 2 else ("end", {"answer": "y"})
        call = json.dumps({"name": name, "arguments": arguments})
        ids = [*BYTES.encode(f"<tool_call>{call}</tool_call>", special=True), 257]
        content = [{"token_id": token, "logprob": -0.5} for token in ids]
        choice = {"token_ids": ids, "logprobs": {"content": content}, "finish_reason": "stop"}
        match next(self.faults, None):
            case "500":
                return web.Response(status=500, text="no")
            case "disconnect":
                assert request.transport is not None
                request.transport.abort()
            case "hang":
                self.hangs()
                await asyncio.Event().wait()
            case "half":
                response = web.StreamResponse(headers={"Content-Length": "1000"})
                await response.prepare(request)
                await response.write(b'{"choices"')
                assert request.transport is not None
                request.transport.close()
                return response
            case "garbage":
                return web.Response(text="<html>")
            case "401" | "404" | "413" as status:
                return web.Response(status=int(status), text="no such model")
            case "nan":
                content[0]["logprob"] = None  # type: ignore[assignment]
        return web.json_response({"choices": [choice]})


@asynccontextmanager
async def serving(server: Server) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", server.__call__)
    runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def context_on(
    url: str, parts: Parts, *, retries: int = 0, timeout_s: float = 200
) -> AsyncIterator[RolloutContext]:
    """A context on a server; by default the engine itself never tries again, the runner does."""
    settings = VLLMSettings(urls=[url], timeout_s=timeout_s, retries=retries)
    engine = VLLMEngine(settings, [url], tokenizer=BYTES)
    await engine.start()
    try:
        yield parts.context(engine, parts.renderer(BYTES), None)
    finally:
        await engine.close()


def whole(episode: Episode) -> bool:
    trained = sum(int(row.loss_mask.sum()) for row in training_samples(episode, [1.0] * len(episode.turns)))
    return episode.status == "done" and episode.answer == "y" and trained == episode.sampled_tokens > 0


@pytest.mark.parametrize("fault", [*FAULTS, "nan"])
async def test_an_episode_is_tried_again_from_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    server, clock = Server([None, fault, fault]), Clock(monkeypatch)  # its second turn, then the first of the next try
    server.hangs = lambda: clock.forward(201)
    failures: list[dict[str, Any]] = []
    async with serving(server) as url, context_on(url, make_parts(tmp_path)) as context:
        (episode,) = await collect(context, specs(1), failures=failures)
    assert whole(episode)
    assert (episode.attempt, server.completions) == (2, 5)
    cause = "policy" if fault == "nan" else "engine"
    assert [(f["attempt"], f["final"], f["stage"], f["cause"]) for f in failures] == [
        (0, False, "generate", cause),
        (1, False, "generate", cause),
    ]


@pytest.mark.slow
async def test_whatever_the_server_does_every_episode_is_stored_once_and_resume_adds_the_missing(
    tmp_path: Path,
) -> None:
    rng = random.Random(7)
    server = Server(iter(lambda: rng.choice([None] * 8 + list(FAULTS)), ""))
    parts = make_parts(
        tmp_path, rewards={"format": {}}, limits={"backoff_s": 0.0, "retries": 1, "engine_failures": 1000}
    )
    planned = [replace(spec, group_id=spec.id) for spec in specs(40)]
    with RunDir.create(tmp_path / "run", {"planned": [spec.id for spec in planned]}) as run:
        async with (
            serving(server) as url,
            context_on(url, parts, timeout_s=0.5) as context,
            context_on(url, parts) as patient,
        ):
            seen = await collect(context, planned, concurrency=16, run=run)
            assert sorted(e.id for e in seen) == sorted(spec.id for spec in planned)
            statuses = Counter(e.status for e in seen)
            assert set(statuses) == {"done", "infra_error"}, "without both the test shows nothing"
            assert all(whole(e) for e in seen if e.status == "done")
            assert all(e.reward is None for e in seen if e.status == "infra_error")
            server.faults = iter(())
            again = missing(planned, run)
            assert len(again) == statuses["infra_error"]
            await collect(patient, again, concurrency=16, run=run)
            assert missing(planned, run) == []
            assert sum(row.status == "done" for row in run.rows()) == len(planned)
    assert (report := check(tmp_path / "run")).ok, report.as_text()


async def test_a_run_stops_when_the_engine_is_down_and_goes_on_when_it_is_back(tmp_path: Path) -> None:
    parts = make_parts(tmp_path, limits={"backoff_s": 0.0, "retries": 1, "engine_failures": 4})
    planned = specs(60)
    server = Server()
    with RunDir.create(tmp_path / "run") as run:
        async with serving(server) as url, context_on(url, parts) as context:
            server.faults = (None if k < 20 else "500" for k in range(10_000))
            with pytest.raises(EngineDown, match="4 episodes in a row"):
                await collect(context, planned, concurrency=4, run=run)
            asked = server.completions
            assert asked < 20 + 2 * (4 + 4), "no request after the run stopped, and no episode began in vain"
            done = sum(row.status == "done" for row in run.rows())
            assert done == 60 - len(missing(planned, run)) > 0
            server.faults = iter(())
            await collect(context, missing(planned, run), concurrency=4, run=run)
        assert missing(planned, run) == []


@pytest.mark.parametrize(("status", "remedy"), [("401", "key"), ("404", "engine.model"), ("413", "too long")])
async def test_a_server_that_refuses_stops_the_run_and_is_no_bug_in_user_code(
    tmp_path: Path, status: str, remedy: str
) -> None:
    parts = make_parts(tmp_path, limits={"backoff_s": 0.0, "retries": 2, "engine_failures": 4, "user_errors": 0})
    server, seen = Server(iter(lambda: status, "")), list[Episode]()
    async with serving(server) as url, context_on(url, parts, retries=3) as context:
        with pytest.raises(EngineDown, match=rf"refused 4 episodes in a row[\s\S]*status {status}[\s\S]*{remedy}"):
            await collect(context, specs(20), seen=seen)
    assert [(e.status, e.attempt, e.error.cause) for e in seen if e.error] == [("infra_error", 0, "refusal")] * 4
    assert server.completions == 4, "what is refused is not asked again"


async def test_a_dead_policy_stops_the_run_at_its_first_episode(tmp_path: Path) -> None:
    server, seen = Server(iter(lambda: "nan", "")), list[Episode]()
    async with serving(server) as url, context_on(url, make_parts(tmp_path)) as context:
        with pytest.raises(DeadPolicy, match=r"not finite[\s\S]*-> [\s\S]*earlier checkpoint"):
            await collect(context, specs(20), seen=seen)
    assert [e.status for e in seen] == ["infra_error"]


async def test_failures_between_successes_stop_nothing(tmp_path: Path) -> None:
    parts = make_parts(tmp_path, limits={"backoff_s": 0.0, "retries": 0, "engine_failures": 2})
    server = Server(None if k % 5 else "500" for k in range(10_000))
    async with serving(server) as url, context_on(url, parts) as context:
        episodes = await collect(context, specs(20))
    assert Counter(e.status for e in episodes)["infra_error"] > 2


async def test_cancelling_with_requests_in_flight_leaves_nothing(tmp_path: Path) -> None:
    server = Server(iter(lambda: "hang", ""))
    async with serving(server) as url, context_on(url, make_parts(tmp_path)) as context:
        before = asyncio.all_tasks()
        playing = asyncio.create_task(collect(context, specs(20), concurrency=8))
        await until_async(lambda: server.completions == 8)
        playing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing
        assert {task for task in asyncio.all_tasks() - before if "play" in repr(task)} == set()
        server.faults = iter(())
        assert all(whole(e) for e in await collect(context, specs(20), concurrency=8))


def test_the_collector_is_as_before_when_the_last_run_ends() -> None:
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    first, second = rare_collections(), rare_collections()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert gc.get_threshold()[0] > before[0]
    second.__exit__(None, None, None)
    assert (gc.get_threshold(), gc.get_freeze_count()) == (before, frozen)
