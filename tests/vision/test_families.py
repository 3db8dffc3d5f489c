"""Each family that sees: engine, trainer and transformers agree on every token of conversations with images."""

from __future__ import annotations

import copy
import hashlib
from typing import Any

import numpy as np
import pytest
import torch

from agentrl.chat.formats.registry import parser_of
from agentrl.chat.renderer import Renderer
from agentrl.chat.thread import Thread
from agentrl.config.agent import FormatSettings
from agentrl.config.train import TrainSettings
from agentrl.engines.embedded.engine import TorchEngine
from agentrl.models.load import LoadedModel
from agentrl.models.vision.album import Album
from agentrl.models.vision.sight import Sight
from agentrl.train.model.packing import pack
from agentrl.train.model.sight import Eyes
from agentrl.train.trainer import Trainer
from agentrl.types.engine import Sampling
from agentrl.types.parts.image import image_info
from agentrl.types.sample import TrainingSample, samples_of
from agentrl.types.task import Task
from agentrl.types.trajectory import Trajectory
from tests.vision.families import FAMILIES, picture, shown

FILES: dict[str, bytes] = {}


def part(seed: int, width: int = 40, height: int = 24) -> dict[str, Any]:
    data = picture(seed, width, height)
    sha = hashlib.sha256(data).hexdigest()
    FILES[sha] = data
    said = image_info(data)
    return {"type": "image", "blob": sha, "width": said.width, "height": said.height, "format": "png"}


@pytest.fixture(scope="module", params=list(FAMILIES))
def loaded(request: pytest.FixtureRequest) -> LoadedModel:
    return FAMILIES[request.param]()


async def episode(engine: TorchEngine, renderer: Renderer, first: int, seed: int) -> list[TrainingSample]:
    """Four turns with three images; the engine samples the replies."""
    messages = [shown("What is it?", part(first))]
    later = [
        [shown("And this one?", part(first + 1, 24, 40))],
        [{"role": "user", "content": "Sure?"}],
        [shown("room 7", part(first + 2), "tool")],
    ]
    trajectory, turns = Trajectory(), {}
    thread = Thread(trajectory, None)
    thread.restart(messages)
    engine.begin_session(f"s{seed}", Task.of("t", ""), thread.messages, seed)
    engine.use_images(f"s{seed}", FILES.__getitem__)
    for turn in range(4):
        prompt = thread.prompt(renderer)
        sampling = Sampling(max_tokens=6, seed=100 * seed + turn, stop_token_ids=renderer.stop_token_ids)
        said = await engine.generate(prompt.tokens, sampling, f"s{seed}")
        turns[thread.reply(prompt, said, "It is.", opened="", trained=True)] = turn
        if turn < 3:
            thread.add(later[turn])
    engine.end_session(f"s{seed}")

    def sample(**arrays: Any) -> TrainingSample:
        return TrainingSample(episode_id=f"e{seed}", group_id="g", images=tuple(FILES), **arrays)

    return samples_of(trajectory.nodes, turns, sample)


async def played(loaded: LoadedModel) -> list[TrainingSample]:
    """Three episodes: two of the same images, one of others of the same sizes."""
    renderer = Renderer(loaded.chat(), parser_of(FormatSettings(use="hermes"), []), [])
    engine = TorchEngine(copy.deepcopy(loaded.model), processor=loaded.processor, max_context=loaded.max_context)
    try:
        return [s for k, first in enumerate((0, 0, 10)) for s in await episode(engine, renderer, first, k)]
    finally:
        await engine.close()


def trainer_of(loaded: LoadedModel, budget: int = 16384, **settings: Any) -> Trainer:
    assert loaded.processor is not None
    eyes = Eyes(loaded.processor, FILES.__getitem__, budget)
    return Trainer(copy.deepcopy(loaded.model), TrainSettings(**settings), eyes=eyes)


async def test_engine_trainer_and_transformers_agree(loaded: LoadedModel) -> None:
    samples = await played(loaded)
    assert all((sample.token_ids < 0).any() for sample in samples)
    trainer = trainer_of(loaded)
    assert trainer.unpacked is None
    assert loaded.processor is not None
    album = Album(loaded.processor)
    for blob in FILES:
        album.add(blob, FILES.__getitem__)
    sight = Sight(loaded.model, album)
    for sample, found in zip(samples, trainer.logprobs(samples), strict=True):
        mask = sample.loss_mask
        assert np.abs(found[mask] - sample.behaviour_logprob[mask]).max() < 1e-4
        sampled = set(sample.token_ids[mask].tolist())
        if not sampled & loaded.processor.vision_tokens:
            with torch.no_grad():
                own = sight.own_logits(sample.token_ids.tolist()).log_softmax(-1)
            at = np.flatnonzero(mask)
            assert np.abs(own[at - 1, sample.token_ids[at]].numpy() - found[mask]).max() < 1e-4


def gradients(trainer: Trainer, samples: list[TrainingSample]) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    step = trainer.optimizer.step
    trainer.optimizer.step = lambda *a, **k: found.update(  # type: ignore[method-assign]
        {n: p.grad.clone() for n, p in trainer.model.named_parameters() if p.grad is not None}
    )
    trainer.update(samples, 0)
    trainer.optimizer.step = step  # type: ignore[method-assign]
    return found


async def test_gradients_of_packed_trees_are_those_of_single_rows(loaded: LoadedModel) -> None:
    samples = await played(loaded)
    samples = [
        TrainingSample(**{**vars(sample), "advantage": np.where(sample.loss_mask, (-1.0) ** k, 0).astype(np.float32)})
        for k, sample in enumerate(samples)
    ]
    (packed,) = pack(samples, 16384)
    assert len(packed.token_ids) < sum(len(sample.token_ids) for sample in samples)
    tree = gradients(trainer_of(loaded, packing="tree", max_grad_norm=1e9), samples)
    rows = gradients(trainer_of(loaded, packing="rows", max_grad_norm=1e9, token_budget=1), samples)
    again = gradients(trainer_of(loaded, budget=1, packing="tree", max_grad_norm=1e9, token_budget=200), samples)
    assert loaded.processor is not None
    towers = [name for name in tree if set(name.split(".")) & set(loaded.processor.family.modules)]
    assert towers
    assert max(tree[name].abs().max() for name in towers) > 1e-4
    for other in (rows, again):
        assert tree.keys() == other.keys()
        assert max((tree[name] - other[name]).abs().max().item() for name in tree) < 1e-5


async def test_two_images_of_one_size_are_told_apart(loaded: LoadedModel) -> None:
    """Engine: the second episode finds the images of the first in the cache, the third has others at the same place."""
    samples = await played(loaded)
    found = trainer_of(loaded).logprobs(samples)
    swapped = [
        TrainingSample(**{**vars(samples[0]), "token_ids": np.where(mask, other, own)})
        for own, other in [(samples[0].token_ids, samples[2].token_ids[: len(samples[0].token_ids)])]
        if len(own) == len(other)
        for mask in [own < 0]
    ]
    for each in swapped:
        (other,) = trainer_of(loaded).logprobs([each])
        assert np.abs(other - found[0]).max() > 1e-3
