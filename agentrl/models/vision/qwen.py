"""Qwen2-VL, Qwen2.5-VL and Qwen3-VL: an image is a grid of placeholders with positions by row and column."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentrl.models.vision.family import Family, Pixels, Reader, Seen


def _grid(processor: Reader, width: int, height: int) -> tuple[int, int]:
    """Rows and columns of placeholders."""
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

    own = processor.hf
    step = own.patch_size * own.merge_size
    size = own.size
    rows, columns = smart_resize(height, width, step, min_pixels=size["shortest_edge"], max_pixels=size["longest_edge"])
    return rows // step, columns // step


def _layout(processor: Reader, width: int, height: int) -> Sequence[None]:
    rows, columns = _grid(processor, width, height)
    return (None,) * (rows * columns)


def _pixels(processor: Reader, image: Any) -> Pixels:
    made = processor.hf(images=[image], return_tensors="pt")
    return Pixels(dict(made), len(made["pixel_values"]))


def _features(model: Any, output: Any, images: Sequence[Pixels]) -> list[Seen]:
    import torch

    merge = model.config.vision_config.spatial_merge_size
    sizes = [len(features) for features in output.pooler_output]
    deep = zip(*(torch.split(layer, sizes) for layer in getattr(output, "deepstack_features", None) or ()), strict=True)
    grids = [image.inputs["image_grid_thw"][0].tolist() for image in images]
    layers = list(deep) or [()] * len(sizes)
    return [
        Seen(features, (high // merge, wide // merge), each)
        for features, (_, high, wide), each in zip(output.pooler_output, grids, layers, strict=True)
    ]


FAMILY = Family(_layout, _pixels, _features, ("visual",), in_grid=True)
