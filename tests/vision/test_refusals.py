"""Images that a model does not take, image processors that do not fit, and features that are not kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from agentrl.models.load import LoadedModel
from agentrl.models.vision import processor as processors
from agentrl.models.vision.encoder import KeptSight, VisionEncoder
from agentrl.models.vision.family import Pixels, Seen
from agentrl.models.vision.image_registry import ImageRegistry
from agentrl.models.vision.processor import ImageProcessor, load_processor, processor_of
from agentrl.types.errors import AgentRLError, RecipeError
from agentrl.types.parts.image import ImageRefused
from agentrl.types.parts.placeholders import MOST, ids_of
from tests.vision.families import idefics3, picture, qwen


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    return qwen("qwen2_vl")


def processor(of: LoadedModel) -> ImageProcessor:
    assert of.processor is not None
    return of.processor


# The registry


def test_a_placeholder_of_no_known_image_is_refused(loaded: LoadedModel) -> None:
    album = ImageRegistry(processor(loaded))
    red = np.array([5, *ids_of("red", 2)], np.int64)
    with pytest.raises(ImageRefused, match="names an image that is not known") as refused:
        album.places(red)
    assert refused.value.remedy == "give the image itself"
    number = album.add("red", lambda blob: b"")
    assert album.places(red).place.tolist() == [0, 1]
    for other in (number - 1, number + MOST):
        with pytest.raises(ImageRefused, match="names an image that is not known"):
            album.places(np.array([-other], np.int64))


# The encoder


class Tower:
    """Stands in for a family: every image has so many features of 16 bytes."""

    in_grid = False

    def __init__(self, features: int) -> None:
        self.features, self.runs = features, 0

    def tower(self, model: object, images: list[Pixels]) -> list[Seen]:
        self.runs += 1
        return [Seen(torch.zeros(self.features, 4)) for _ in images]


def with_tower(encoder: VisionEncoder, features: int) -> Tower:
    tower: Any = Tower(features)
    encoder._family = tower
    made: Tower = tower
    return made


def test_without_images_the_tower_does_not_run(loaded: LoadedModel) -> None:
    encoder = VisionEncoder(loaded.model, ImageRegistry(processor(loaded)))
    tower = with_tower(encoder, 3)
    assert encoder.tower({}) == {}
    assert tower.runs == 0
    assert [*encoder.tower({7: Pixels({}, 1, placeholders=3)})] == [7]


def test_as_many_features_as_placeholders_or_the_processor_is_anothers(loaded: LoadedModel) -> None:
    encoder = VisionEncoder(loaded.model, ImageRegistry(processor(loaded)))
    with_tower(encoder, 3)
    with pytest.raises(AgentRLError, match="an image has 4 placeholders and 3 features") as wrong:
        encoder.tower({7: Pixels({}, 1, placeholders=4)})
    assert wrong.value.place == processor(loaded).name
    assert "must be that of the model" in str(wrong.value.remedy)


def test_features_that_were_used_longest_ago_make_room(loaded: LoadedModel) -> None:
    """The images of one request stay together, also beyond the bound."""
    own = processor(loaded)
    album = ImageRegistry(own)
    a, b, c = (album.add(blob, lambda blob: b"") for blob in "abc")
    for blob in "abc":
        own.kept.get(blob, lambda: Pixels({}, 1, placeholders=1))
    sight = KeptSight(loaded.model, album, keep=2 * 16)
    with_tower(sight, 1)
    sight.look([a, b])
    sight.look([a])
    sight.look([c])
    assert (set(sight.seen), sight.looked) == ({a, c}, 3), "b was used longest ago"
    sight.look([a, b, c])
    assert (set(sight.seen), sight.looked) == ({a, b, c}, 4)
    sight.look([b])
    assert set(sight.seen) == {b, c}
    sight.forget()
    sight.look([b])
    assert sight.looked == 5


# The processor


def test_an_image_without_a_token_is_refused(loaded: LoadedModel) -> None:
    own = processor(loaded)
    blind = replace(own.family, layout=lambda reader, width, height: [5, 6])
    made = replace(own, family=blind)
    with pytest.raises(ImageRefused, match="an image of 40 x 24 pixels is 2 tokens") as refused:
        made.layout(40, 24)
    assert refused.value.remedy == "make it smaller"


def test_a_model_of_texts_has_no_image_processor(loaded: LoadedModel, tmp_path: Path) -> None:
    config = SimpleNamespace(model_type="llama")
    assert load_processor(tmp_path, config, loaded.tokenizer) is None
    assert processor_of(config, processor(loaded).hf, loaded.tokenizer) is None


def test_the_tokenizer_of_another_model_is_refused(loaded: LoadedModel) -> None:
    other = SimpleNamespace(convert_ids_to_tokens=lambda number: "a", added_tokens_decoder={})
    with pytest.raises(RecipeError, match="the tokenizer has no control token") as refused:
        processor_of(loaded.model.config, processor(loaded).hf, other)
    assert (refused.value.place, refused.value.remedy) == ("model", "use the tokenizer of the same model")


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("Qwen2VLImageProcessor", "Qwen2VLImageProcessorPil"),
        ("Idefics3ImageProcessorFast", "Idefics3ImageProcessorPil"),
        ("CLIPFeatureExtractor", "CLIPImageProcessorPil"),
    ],
)
def test_the_image_processor_of_a_folder_is_the_one_that_needs_pillow_alone(name: str, found: str) -> None:
    assert processors._class_of(name, Path("preprocessor_config.json")).__name__ == found


def test_an_image_processor_that_needs_torchvision_is_refused_by_name() -> None:
    file = Path("model/preprocessor_config.json")
    with pytest.raises(RecipeError, match="there is no image processor 'OfNobodyImageProcessor' without torchvision"):
        processors._class_of("OfNobodyImageProcessor", file)


def test_an_image_that_is_not_split_is_one_tile() -> None:
    loaded = idefics3("idefics3")
    split = processor(loaded)
    hf = type(split.hf)(size={"longest_edge": 30}, max_image_size={"longest_edge": 16}, do_image_splitting=False)
    whole = processor_of(loaded.model.config, hf, loaded.tokenizer)
    assert whole is not None
    one = whole.layout(40, 24)
    assert one == whole.layout(1, 1)
    assert split.layout(40, 24).count(None) == 5 * one.count(None), "of 2 x 2 tiles and of the whole"
    made = whole.pixels(picture(0))
    assert made.inputs["pixel_values"].shape[1] == 1
    assert made.placeholders == one.count(None)


def test_an_image_whose_width_is_rounded_to_none_is_refused() -> None:
    """784 / 784 is less than 1 where transformers multiplies with the reciprocal."""
    loaded = idefics3("idefics3")
    hf = type(processor(loaded).hf)(size={"longest_edge": 30}, max_image_size={"longest_edge": 16}, do_resize=False)
    made = processor_of(loaded.model.config, hf, loaded.tokenizer)
    assert made is not None
    with pytest.raises(ImageRefused, match="an image of 1 x 784 pixels .*: it is too long for its width") as refused:
        made.layout(1, 784)
    assert refused.value.remedy == "give one with another shape"
    assert made.layout(1, 800)
