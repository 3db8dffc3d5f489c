"""How LoRA adapters and weights reach vLLM servers: which requests, in which order, and what becomes of those under
way. The servers are imitated; `test_vllm.py` does the same on a real one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import torch

from agentrl.engines import replicas
from agentrl.engines.vllm.engine import VLLMEngine
from agentrl.engines.vllm.settings import VLLMSettings
from agentrl.types.engine import Adapter, NoAdapters, Sampling
from agentrl.types.errors import EngineError
from tests.waiting import until_async

from .fake_vllm import BYTES, FakeVLLM
from .http_server import serving

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
UPDATE = ["/pause", "/start_weight_update", "/update_weights", "/finish_weight_update", "/reset_prefix_cache"]
UPDATE += ["/reset_encoder_cache", "/resume"]


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(replicas, "LONGEST_PAUSE_S", 0.02)


@asynccontextmanager
async def engine_on(folder: Path, *servers: FakeVLLM, **settings) -> AsyncIterator[VLLMEngine]:
    async with AsyncExitStack() as stack:
        urls = [await stack.enter_async_context(serving(server)) for server in servers]
        given = VLLMSettings(urls=urls, weights_dir=str(folder), retries=2, **settings)
        engine = VLLMEngine(given, urls, tokenizer=BYTES)
        stack.push_async_callback(engine.close)
        yield engine


def adapter(fails: str = "") -> Adapter:
    def save(folder: Path) -> None:
        folder.mkdir()
        (folder / "adapter_config.json").write_text(json.dumps({"r": 8}))

    async def base() -> dict[str, torch.Tensor]:
        assert not fails, fails
        return {"weight": torch.zeros(2)}

    return Adapter(save, base)


async def say(engine: VLLMEngine, session: str = "e") -> list[int]:
    said = await engine.generate([1, 2, 3], Sampling(max_tokens=1), session)
    return [span.version for span in said.versions]


async def settled(engine: VLLMEngine) -> None:
    await asyncio.gather(*engine._chores)


async def test_each_version_is_an_adapter_of_its_own_and_no_weights_are_sent(tmp_path: Path) -> None:
    server = FakeVLLM()
    async with engine_on(tmp_path, server) as engine:
        for version in (3, 4, 5):
            await engine.update(adapter("the server has the base"), version)
            assert await say(engine) == [version]
        await engine.score([1, 2], [[3, 4]])
        asked = [body["model"] for path, body in server.asked if path == "/v1/completions"][-1]
        await settled(engine)
        assert asked == engine._policy.model == next(iter(server.adapters))
        assert server.controlled == [LOAD, LOAD, UNLOAD, LOAD, UNLOAD]
        assert all("load_inplace" not in body for path, body in server.asked if path == LOAD), "read at every step"
        assert len({body["lora_name"] for path, body in server.asked if path == LOAD}) == 3
        assert len([*tmp_path.rglob("adapter_config.json")]) == 1, "folders of versions that are gone are removed"
        # A second engine on the same server, as after a kill: caches that the first left are under other names.
        async with engine_on(tmp_path / "again", server) as again:
            await again.update(adapter(), 5)
            assert again._policy.model != engine._policy.model
    assert server.adapters == {}, "a server that goes on without us keeps no adapter whose folder is gone"
    assert [*tmp_path.rglob("adapter_config.json")] == []


async def test_a_score_that_a_server_aborts_is_asked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = FakeVLLM()
    async with engine_on(tmp_path, server) as engine:
        await engine.start()
        server.aborts = 2
        assert await engine.score([1, 2], [[3, 4]]) == [[-1.0, -1.0]]
        monkeypatch.setattr("agentrl.engines.vllm.engine.CONTINUATIONS", 2)
        server.aborts = 2
        with pytest.raises(EngineError, match="aborted the scoring"):
            await engine.score([1, 2], [[3, 4]])


async def test_requests_under_way_keep_their_adapter_until_they_end(tmp_path: Path) -> None:
    server = FakeVLLM()
    async with engine_on(tmp_path, server) as engine:
        await engine.update(adapter(), 1)
        server.open.clear()
        early = [asyncio.create_task(say(engine)), asyncio.create_task(engine.score([1, 2], [[3]]))]
        await until_async(lambda: len([body for _, body in server.asked[-2:] if "adapter" in str(body)]) == 2)
        await engine.update(adapter(), 2)
        late = asyncio.create_task(say(engine, "late"))
        await settled(engine)
        assert len(server.adapters) == 2
        server.open.set()
        assert await early[0] == [1]
        assert await early[1] == [[-1.0]]
        assert await late == [2]
        await settled(engine)
        assert [*server.adapters] == [engine._policy.model]


async def test_a_server_that_restarts_gets_the_adapter_again(tmp_path: Path) -> None:
    server = FakeVLLM()
    async with engine_on(tmp_path, server) as engine:
        await engine.update(adapter(), 1)
        server.restart()
        assert await say(engine) == [1]
        assert server.controlled == [LOAD, LOAD]


async def test_a_server_that_restarts_after_merged_weights_waits_for_the_next(tmp_path: Path) -> None:
    """Its own weights would pass for those of the update: it tells no version of ours."""
    restarted, other = FakeVLLM(), FakeVLLM()
    async with engine_on(tmp_path, restarted, other) as engine:
        await engine.update({"weight": torch.zeros(2)}, 7)
        assert {tuple(await say(engine, f"e{k}")) for k in range(4)} == {(7,)}
        restarted.restart()
        assert {tuple(v) for v in await asyncio.gather(*(say(engine, f"f{k}") for k in range(8)))} == {(7,)}
        assert "restarted" in engine.replicas.all[0].unavailable_reason
        await engine.update({"weight": torch.zeros(2)}, 8)
        assert [replica.unavailable_reason for replica in engine.replicas.all] == ["", ""]


async def test_a_server_with_an_earlier_trainings_weights_gets_the_base_first(tmp_path: Path) -> None:
    server = FakeVLLM()
    server.version = "12"
    async with engine_on(tmp_path, server) as engine:
        await engine.update(adapter(), 0)
        await engine.update(adapter("once is enough"), 1)
        await settled(engine)
    assert server.controlled[: len(UPDATE) + 3] == [*UPDATE, LOAD, LOAD, UNLOAD]


async def test_a_server_without_lora_falls_back_to_weights_by_name(tmp_path: Path) -> None:
    able, unable = FakeVLLM(), FakeVLLM(lora=False)
    async with engine_on(tmp_path, able, unable) as engine:
        with pytest.raises(NoAdapters, match="/v1/load_lora_adapter.* status 404"):
            await engine.update(adapter(), 0)
        assert not engine.takes_adapters
        assert able.adapters == {}
        await engine.update({"weight": torch.zeros(2)}, 0)
        assert [replica.unavailable_reason for replica in engine.replicas.all] == ["", ""]
        assert {tuple(await say(engine, f"e{k}")) for k in range(4)} == {(0,)}


async def test_an_update_clears_what_old_weights_computed_and_a_server_that_cannot_gets_no_work(tmp_path: Path) -> None:
    server = FakeVLLM()
    async with engine_on(tmp_path, server) as engine:
        await engine.update({"weight": torch.zeros(2)}, 1)
        assert server.controlled == UPDATE
        server.clears = False
        with pytest.raises(EngineError, match="no server took the weights of version 2: .*reset_prefix_cache"):
            await engine.update({"weight": torch.zeros(2)}, 2)


async def test_merge_lora_asks_for_weights(tmp_path: Path) -> None:
    async with engine_on(tmp_path, FakeVLLM(), merge_lora=True) as engine:
        assert not engine.takes_adapters


async def test_servers_that_share_the_trainers_gpu_sleep_until_the_next_update(tmp_path: Path) -> None:
    server = FakeVLLM()
    async with engine_on(tmp_path, server, colocate="sleep", memory_share=0.4) as engine:
        await engine.update({"weight": torch.zeros(2)}, 1)
        await engine.rest()
        await engine.rest()
        await engine.update({"weight": torch.zeros(2)}, 2)
        await engine.rest()
        server.sleeps = False
        await engine.update({"weight": torch.zeros(2)}, 3)
        with pytest.raises(EngineError, match="does not free the GPU's memory: /sleep.* status 500"):
            await engine.rest()
    assert server.controlled == [*UPDATE, "/sleep", "/wake_up", *UPDATE, "/sleep", "/wake_up", *UPDATE, "/sleep"]
