"""Idefics3 and SmolVLM: an image is split into tiles, followed by the whole image.

Laurençon et al., 2024 (arXiv:2408.12637), Marafioti et al., 2025 (arXiv:2504.05299). Each tile has the same number of
placeholders, because the connector joins squares of features (pixel shuffle), and a tag that names its row and column.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from agentrl.models.vision.family import Family, Pixels, Reader, Seen

AROUND, WHOLE = "<fake_token_around_image>", "<global-img>"


def _tiles(processor: Reader, width: int, height: int) -> tuple[int, int]:
    """Rows and columns of tiles; (0, 0): the image is not split.

    As the image processor splits. Its own `get_number_of_image_patches` is wrong where a side is not a multiple of
    the tile before it is rounded up (transformers 5.17).
    """
    from transformers.models.idefics3.image_processing_pil_idefics3 import get_resize_output_image_size

    own = processor.hf
    if not own.do_image_splitting:
        return 0, 0
    if own.do_resize:
        shape = np.broadcast_to(np.uint8(0), (height, width))
        height, width = get_resize_output_image_size(shape, own.size["longest_edge"])
    tile, ratio = _side(processor), width / height
    if width >= height:
        width = math.ceil(width / tile) * tile
        height = math.ceil(int(width / ratio) / tile) * tile
    else:
        height = math.ceil(height / tile) * tile
        width = math.ceil(int(height * ratio) / tile) * tile
    if not (width and height):
        raise ValueError("it is too long for its width")
    return (0, 0) if max(width, height) <= tile else (height // tile, width // tile)


def _side(processor: Reader) -> int:
    """Width and height of a tile in pixels."""
    return int(processor.hf.max_image_size["longest_edge"])


def _layout(processor: Reader, width: int, height: int) -> Sequence[int | None]:
    config = processor.config
    side = _side(processor) // config.vision_config.patch_size // config.scale_factor
    tile = processor.placeholder * side**2
    rows, columns = _tiles(processor, width, height)
    lines = ["".join(f"{AROUND}<row_{row}_col_{column}>{tile}" for column in _from_1(columns)) for row in _from_1(rows)]
    # With tiles, two line breaks precede the whole image, and they are tokenised together.
    text = "".join(f"{line}\n" for line in lines) + ("\n" if lines else "") + f"{AROUND}{WHOLE}{tile}{AROUND}"
    return [None if token == config.image_token_id else token for token in processor.encode(text)]


def _from_1(count: int) -> range:
    return range(1, count + 1)


def _pixels(processor: Reader, image: Any) -> Pixels:
    made = processor.hf(images=[[image]], return_tensors="pt")
    tiles = made["pixel_values"].shape[1]
    if not made["pixel_values"].flatten(2).any(-1).all():
        raise ValueError("all values of a tile are 0, and transformers takes it for padding: is do_normalize off?")
    patches = (_side(processor) // processor.config.vision_config.patch_size) ** 2
    return Pixels({name: made[name] for name in made if name.startswith("pixel_")}, tiles * patches)


def _features(model: Any, output: Any, images: Sequence[Pixels]) -> list[Seen]:
    import torch

    tiles = [image.inputs["pixel_values"].shape[1] for image in images]
    return [Seen(features.flatten(0, 1)) for features in torch.split(output.pooler_output, tiles)]


FAMILY = Family(
    _layout,
    _pixels,
    _features,
    ("vision_model", "connector"),
    along=1,
    decides=("vision_config.patch_size", "scale_factor"),
)
