"""LLaVA: an image is cut to a square of one size, and is as many placeholders as that has patches.

Liu et al., 2023 (arXiv:2310.03744): the tower of CLIP (or SigLIP) and a projector of two layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentrl.models.vision.family import Family, Pixels, Reader, Seen

CLIP, SIGLIP = "clip_vision_model", "siglip_vision_model"


def _patches(processor: Reader) -> int:
    """Returns the number of patches of an image, whatever its size.

    Raises:
        ValueError: the processor does not resize all images to the size of the tower.
    """
    own, tower = processor.hf, processor.config.vision_config
    size = own.crop_size if own.do_center_crop else own.size
    if (size.get("height"), size.get("width")) != (tower.image_size, tower.image_size):
        raise ValueError(f"its processor makes images of {dict(size)}, and its tower takes {tower.image_size} pixels")
    return int(tower.image_size // tower.patch_size) ** 2


def _layout(processor: Reader, width: int, height: int) -> Sequence[None]:
    config = processor.config
    # CLIP puts a feature of the whole image before those of the patches. "default" drops the first feature.
    whole = int(config.vision_config.model_type == CLIP)
    dropped = int(config.vision_feature_select_strategy == "default")
    return (None,) * (_patches(processor) + whole - dropped)


def _pixels(processor: Reader, image: Any) -> Pixels:
    made = processor.hf(images=[image], return_tensors="pt")
    return Pixels({"pixel_values": made["pixel_values"]}, _patches(processor))


def _features(model: Any, output: Any, images: Sequence[Pixels]) -> list[Seen]:
    return [Seen(features) for features in output.pooler_output]


FAMILY = Family(
    _layout,
    _pixels,
    _features,
    ("vision_tower", "multi_modal_projector"),
    towers=(CLIP, SIGLIP),
    decides=("vision_config.patch_size", "vision_config.image_size", "vision_feature_select_strategy"),
)
