"""Each family that sees: engine, trainer and transformers agree on every token of conversations with images."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from agentrl.models.load import LoadedModel
from agentrl.models.vision.encoder import VisionEncoder
from agentrl.models.vision.image_registry import ImageRegistry
from agentrl.training.model.packing import pack
from agentrl.types.sample import TrainingSample
from tests.vision.episodes import FILES, gradients, played, trainer_of, with_advantages
from tests.vision.families import FAMILIES

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=list(FAMILIES))
def loaded(request: pytest.FixtureRequest) -> LoadedModel:
    return FAMILIES[request.param]()


async def test_engine_trainer_and_transformers_agree(loaded: LoadedModel) -> None:
    samples = await played(loaded)
    assert all((sample.token_ids < 0).any() for sample in samples)
    trainer = trainer_of(loaded)
    assert trainer.unpacked is None
    assert loaded.processor is not None
    album = ImageRegistry(loaded.processor)
    for blob in FILES:
        album.add(blob, FILES.__getitem__)
    sight = VisionEncoder(loaded.model, album)
    for sample, found in zip(samples, trainer.logprobs(samples), strict=True):
        mask = sample.loss_mask
        assert np.abs(found[mask] - sample.behaviour_logprob[mask]).max() < 1e-4
        sampled = set(sample.token_ids[mask].tolist())
        if not sampled & loaded.processor.vision_tokens:
            with torch.no_grad():
                own = sight.own_logits(sample.token_ids.tolist()).log_softmax(-1)
            at = np.flatnonzero(mask)
            assert np.abs(own[at - 1, sample.token_ids[at]].numpy() - found[mask]).max() < 1e-4


async def test_gradients_of_packed_trees_are_those_of_single_rows(loaded: LoadedModel) -> None:
    samples = with_advantages(await played(loaded))
    (packed,) = pack(samples, 16384)
    assert len(packed.token_ids) < sum(len(sample.token_ids) for sample in samples)
    tree = gradients(trainer_of(loaded, packing="tree", max_grad_norm=1e9), samples)
    rows = gradients(trainer_of(loaded, packing="rows", max_grad_norm=1e9, token_budget=1), samples)
    again = gradients(trainer_of(loaded, patch_budget=1, packing="tree", max_grad_norm=1e9, token_budget=200), samples)
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
