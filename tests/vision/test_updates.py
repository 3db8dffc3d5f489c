"""Weight updates of the embedded engine while images are shown: features of the old tower are not used again."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import numpy as np
import pytest
import torch

from agentrl.engines.embedded.engine import TorchEngine
from agentrl.models.load import LoadedModel
from agentrl.models.vision.encoder import VisionEncoder
from agentrl.models.vision.image_registry import ImageRegistry
from agentrl.types.engine import Completion, Sampling
from agentrl.types.parts.image import ImageRefused
from agentrl.types.parts.placeholders import ids_of
from agentrl.types.task import Task
from tests.vision.episodes import FILES, part
from tests.vision.families import FAMILIES, shown

LENGTH = 60


@pytest.fixture(scope="module", params=["qwen2_vl", "smolvlm"])
def loaded(request: pytest.FixtureRequest) -> LoadedModel:
    return FAMILIES[request.param]()


def with_another_tower(loaded: LoadedModel) -> Any:
    """The model with other weights in the tower only."""
    model = copy.deepcopy(loaded.model)
    assert loaded.processor is not None
    torch.manual_seed(3)
    for module in loaded.processor.family.eyes(model):
        for parameter in module.parameters():
            parameter.data += 0.2 * torch.randn_like(parameter)
    return model


def prompt_of(loaded: LoadedModel, image: dict[str, Any]) -> list[int]:
    assert loaded.processor is not None
    layout = loaded.processor.layout(image["width"], image["height"])
    own = iter(ids_of(image["blob"], sum(token is None for token in layout)))
    return [20, 21, *(next(own) if token is None else token for token in layout), 22]


def plain(loaded: LoadedModel, model: Any, token_ids: list[int]) -> np.ndarray:
    """Log-probabilities of the tokens behind the first, by transformers' own forward pass."""
    assert loaded.processor is not None
    album = ImageRegistry(loaded.processor)
    for blob in FILES:
        album.add(blob, FILES.__getitem__)
    with torch.no_grad():
        found = VisionEncoder(model, album).own_logits(token_ids).log_softmax(-1)
    ids = np.array(token_ids[1:])
    return found[:-1][np.arange(len(ids)), np.maximum(ids, 0)].numpy()


@pytest.mark.slow
async def test_an_image_is_seen_anew_after_an_update_in_flight(loaded: LoadedModel) -> None:
    """The image is in the prompt when the weights change, under way and between two turns; its tower's features and
    all keys and values behind it are those of the new weights from then on."""
    other, image = with_another_tower(loaded), part(0)
    prompt = prompt_of(loaded, image)
    engine = TorchEngine(copy.deepcopy(loaded.model), processor=loaded.processor, max_context=loaded.max_context)
    vision = loaded.processor.vision_tokens  # type: ignore[union-attr]
    try:
        for session in ("a", "b"):
            engine.begin_session(session, Task.of("t", ""), [shown("What is it?", image)], 0)
            engine.use_images(session, FILES.__getitem__)
        before = await engine.generate(prompt, Sampling(max_tokens=4, seed=1), "b")
        asked = asyncio.create_task(engine.generate(prompt, Sampling(max_tokens=LENGTH, seed=2), "a"))
        while engine.stats["steps"] < 20:
            await asyncio.sleep(0)
        await engine.update(other, 1)
        split = await asked
        after = await engine.generate(prompt, Sampling(max_tokens=4, seed=1), "b")
    finally:
        await engine.close()

    def check(said: Completion) -> None:
        # Up to a sampled token of images, for which transformers' own pass would look for one.
        whole = next((k for k, token in enumerate(said.token_ids) if token in vision), len(said.token_ids))
        ids = [*prompt, *said.token_ids[:whole]]
        for span in (span for span in said.versions if span.start < whole):
            own = plain(loaded, (loaded.model, other)[span.version], ids)[len(prompt) - 1 :][span.start : span.end]
            ours = np.array(said.logprobs[span.start : span.end][: len(own)])
            assert np.abs(own - ours).max() < 1e-4
            wrong = plain(loaded, (other, loaded.model)[span.version], ids)[len(prompt) - 1 :][span.start : span.end]
            assert len(own) < 4 or np.abs(wrong - ours).max() > 1e-2

    assert [span.version for span in split.versions] == [0, 1]
    assert ([span.version for span in before.versions], [span.version for span in after.versions]) == ([0], [1])
    for said in (before, split, after):
        check(said)


async def test_a_session_that_ended_has_no_images(loaded: LoadedModel) -> None:
    image = part(0)
    engine = TorchEngine(copy.deepcopy(loaded.model), processor=loaded.processor, max_context=loaded.max_context)
    try:
        engine.begin_session("a", Task.of("t", ""), [shown("What is it?", image)], 0)
        engine.use_images("a", FILES.__getitem__)
        await engine.generate(prompt_of(loaded, image), Sampling(max_tokens=1, seed=1), "a")
        engine.end_session("a")
        with pytest.raises(ImageRefused, match="names an image that no message of the conversation holds"):
            await engine.generate(prompt_of(loaded, image), Sampling(max_tokens=1, seed=1), "a")
    finally:
        await engine.close()
