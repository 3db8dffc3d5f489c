"""The families of models that see: how an image becomes tokens, pixels and features in each.

Importable without torch and transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class Reader(Protocol):
    """What a family knows of its model: `agentrl.models.vision.processor.ImageProcessor`."""

    @property
    def config(self) -> Any: ...

    @property
    def hf(self) -> Any: ...


@dataclass(frozen=True)
class Pixels:
    """An image as the tower takes it.

    Attributes:
        inputs: arguments of `get_image_features`.
        patches: how many patches the tower computes: a measure of its work and memory.
    """

    inputs: dict[str, Tensor]
    patches: int


@dataclass(frozen=True)
class Seen:
    """What the tower made of an image.

    Attributes:
        features: [n, H], in place of the embeddings of its n placeholders.
        grid: rows and columns of placeholders, where positions follow them; else None.
        deep: by decoder layer [n, H], added to the hidden states after it (DeepStack, arXiv:2406.04334).
    """

    features: Tensor
    grid: tuple[int, int] | None = None
    deep: Sequence[Tensor] = field(default=())

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return sum(tensor.nbytes for tensor in (self.features, *self.deep))


@dataclass(frozen=True)
class Family:
    """How models of a family see.

    Attributes:
        layout: tokens of an image of a width and height (`Processor.layout`). Raises ValueError for a refused size.
        pixels: a decoded image as the tower takes it.
        tower: runs the tower on images; the features of each.
        in_grid: whether placeholders have positions of two dimensions (M-RoPE, arXiv:2409.12191, section 2.1).
    """

    layout: Callable[[Reader, int, int], Sequence[int | None]]
    pixels: Callable[[Reader, Any], Pixels]
    tower: Callable[[Any, Sequence[Pixels]], list[Seen]]
    in_grid: bool = False


def family_of(config: Any) -> Family | None:
    """The family of a model's configuration; None if it takes text only."""
    return FAMILIES.get(config.model_type)


def _qwen_grid(processor: Reader, width: int, height: int) -> tuple[int, int]:
    """Rows and columns of placeholders."""
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

    own = processor.hf
    step = own.patch_size * own.merge_size
    size = own.size
    rows, columns = smart_resize(height, width, step, min_pixels=size["shortest_edge"], max_pixels=size["longest_edge"])
    return rows // step, columns // step


def _qwen_layout(processor: Reader, width: int, height: int) -> Sequence[None]:
    rows, columns = _qwen_grid(processor, width, height)
    return (None,) * (rows * columns)


def _qwen_pixels(processor: Reader, image: Any) -> Pixels:
    made = processor.hf(images=[image], return_tensors="pt")
    return Pixels(dict(made), len(made["pixel_values"]))


def _qwen_tower(model: Any, images: Sequence[Pixels]) -> list[Seen]:
    import torch

    joined = {name: torch.cat([image.inputs[name] for image in images]) for name in ("pixel_values", "image_grid_thw")}
    output = model.get_image_features(**{name: tensor.to(model.device) for name, tensor in joined.items()})
    merge = model.config.vision_config.spatial_merge_size
    sizes = [len(features) for features in output.pooler_output]
    deep = zip(*(torch.split(layer, sizes) for layer in getattr(output, "deepstack_features", None) or ()), strict=True)
    rows = joined["image_grid_thw"].tolist()
    layers = list(deep) or [()] * len(sizes)
    return [
        Seen(features, (high // merge, wide // merge), each)
        for features, (_, high, wide), each in zip(output.pooler_output, rows, layers, strict=True)
    ]


_QWEN = Family(_qwen_layout, _qwen_pixels, _qwen_tower, in_grid=True)

FAMILIES = {"qwen2_vl": _QWEN, "qwen2_5_vl": _QWEN, "qwen3_vl": _QWEN}
"""By `model_type` of the configuration."""
