"""The tokens of images: as many placeholders as features, and the tokens of transformers' own processors."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from agentrl.models.load import LoadedModel
from agentrl.models.vision.processor import processor_of
from agentrl.types.errors import RecipeError
from agentrl.types.parts.image import ImageRefused
from tests.vision.families import FAMILIES, idefics3, llava

SIZES = [(1, 1), (40, 24), (24, 40), (3, 200), (1000, 700), (17, 33)]


@pytest.fixture(scope="module", params=list(FAMILIES))
def loaded(request: pytest.FixtureRequest) -> LoadedModel:
    return FAMILIES[request.param]()


def png(image: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


@pytest.mark.parametrize("size", SIZES)
def test_the_layout_has_a_placeholder_for_each_feature(loaded: LoadedModel, size: tuple[int, int]) -> None:
    processor = loaded.processor
    assert processor is not None
    pixels = processor.pixels(png(Image.new("RGB", size)))
    (seen,) = processor.family.tower(loaded.model, [pixels])
    assert len(seen.features) == sum(token is None for token in processor.layout(*size)) == pixels.placeholders
    if seen.grid is not None:
        assert len(seen.features) == seen.grid[0] * seen.grid[1]


def test_images_seen_together_are_those_seen_alone(loaded: LoadedModel) -> None:
    processor = loaded.processor
    assert processor is not None
    rng = np.random.default_rng(0)
    shapes = [(24, 40, 3), (40, 24, 3), (9, 9, 3), (24, 40, 3)]
    images = [processor.pixels(png(Image.fromarray(rng.integers(0, 255, shape, np.uint8)))) for shape in shapes]
    together = processor.family.tower(loaded.model, images)
    for image, seen in zip(images, together, strict=True):
        (alone,) = processor.family.tower(loaded.model, [image])
        assert (seen.features - alone.features).abs().max() < 1e-5
    assert (together[0].features - together[3].features).abs().max() > 1e-2


def test_tiles_are_those_of_transformers() -> None:
    """Also where sides are no multiples of the tile, and where the tile has another number of placeholders."""
    from transformers import Idefics3Processor

    loaded = idefics3("idefics3")
    rng = np.random.default_rng(0)
    for longest, tile in ((30, 16), (64, 16), (50, 16), (40, 24)):
        hf = type(loaded.processor.hf)(size={"longest_edge": longest}, max_image_size={"longest_edge": tile})
        processor = processor_of(loaded.model.config, hf, loaded.tokenizer)
        assert processor is not None
        theirs = Idefics3Processor(hf, loaded.tokenizer, image_seq_len=(tile // 8) ** 2)
        for width, height in [(1, 1), (90, 1), *rng.integers(1, 90, (12, 2)).tolist()]:
            image = Image.new("RGB", (width, height))
            (ids,) = theirs(images=[[image]], text=["<image>"], add_special_tokens=False)["input_ids"]
            own = processor.layout(width, height)
            assert [loaded.model.config.image_token_id if token is None else token for token in own] == ids


@pytest.mark.parametrize(("tower", "whole"), [("clip", 1), ("siglip", 0)])
def test_llavas_placeholders_are_those_of_transformers(tower: str, whole: int) -> None:
    from transformers import LlavaProcessor

    loaded = llava(tower)
    theirs = LlavaProcessor(
        loaded.processor.hf,
        loaded.tokenizer,
        patch_size=4,
        vision_feature_select_strategy=loaded.model.config.vision_feature_select_strategy,
        num_additional_image_tokens=whole,
    )
    (ids,) = theirs(images=[Image.new("RGB", (40, 24))], text=["<image>"])["input_ids"]
    assert [loaded.model.config.image_token_id] * len(loaded.processor.layout(40, 24)) == ids


def test_what_decides_the_number_of_tokens_is_in_the_settings() -> None:
    settings = llava().processor.settings
    assert settings["crop_size"] == {"height": 16, "width": 16}
    assert settings["vision_config.patch_size"] == 4
    assert settings["vision_feature_select_strategy"] == "default"
    settings = idefics3("smolvlm").processor.settings
    assert settings["max_image_size"] == {"longest_edge": 16}
    assert (settings["use"], settings["scale_factor"]) == ("smolvlm", 2)


def test_a_tower_of_another_kind_is_refused() -> None:
    """LLaVA's code holds Pixtral's models, too, whose images have other layouts."""
    loaded = llava()
    loaded.model.config.vision_config.model_type = "pixtral"
    with pytest.raises(RecipeError, match="a llava whose tower is a pixtral is not supported"):
        processor_of(loaded.model.config, loaded.processor.hf, loaded.tokenizer)


def test_a_processor_of_another_tower_is_refused() -> None:
    loaded = llava()
    hf = type(loaded.processor.hf)(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    processor = processor_of(loaded.model.config, hf, loaded.tokenizer)
    assert processor is not None
    with pytest.raises(ImageRefused, match="its tower takes 16 pixels"):
        processor.check(png(Image.new("RGB", (40, 24))))


def test_a_tile_that_transformers_would_drop_is_refused() -> None:
    loaded = idefics3("smolvlm")
    hf = type(loaded.processor.hf)(size={"longest_edge": 30}, max_image_size={"longest_edge": 16}, do_normalize=False)
    processor = processor_of(loaded.model.config, hf, loaded.tokenizer)
    assert processor is not None
    dark = Image.new("RGB", (40, 40), "white")
    dark.paste("black", (0, 0, 30, 40))
    with pytest.raises(ImageRefused, match="all values of a tile are 0"):
        processor.pixels(png(dark))
    loaded.processor.pixels(png(dark))


def test_an_image_whose_data_has_another_size_than_its_header_is_refused(loaded: LoadedModel) -> None:
    """The size that was checked against the limits is the one that is decoded."""
    processor = loaded.processor
    assert processor is not None
    out = io.BytesIO()
    Image.new("P", (900, 900)).save(out, "GIF")
    data = bytearray(out.getvalue())
    data[6:10] = (1).to_bytes(2, "little") * 2  # the screen; its only picture stays as large as it is
    with pytest.raises(ImageRefused, match="its header says 1 x 1 pixels, its data"):
        processor.pixels(bytes(data))
