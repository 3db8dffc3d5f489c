"""Families of vision-language models: an image for the processor, the vision tower and the decoder.

Importable without torch and transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class Reader(Protocol):
    """The part of `agentrl.models.vision.processor.ImageProcessor` that families use."""

    @property
    def config(self) -> Any: ...

    @property
    def hf(self) -> Any: ...

    @property
    def placeholder(self) -> str: ...

    @property
    def encode(self) -> Callable[[str], list[int]]: ...


@dataclass(frozen=True)
class Pixels:
    """An image as the tower takes it.

    Attributes:
        inputs: arguments of `get_image_features`.
        patches: number of patches that the tower computes: a measure of its work and memory.
        placeholders: number of features that the tower must return.
    """

    inputs: dict[str, Tensor]
    patches: int
    placeholders: int = 0


@dataclass(frozen=True)
class Seen:
    """Output of the vision tower for an image.

    Attributes:
        features: [n, H], in place of the embeddings of its n placeholders.
        grid: rows and columns of placeholders, if positions follow them; else None.
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
    """A family of vision-language models.

    Attributes:
        layout: tokens of an image of a width and height (`Processor.layout`). Raises ValueError for a refused size.
        pixels: converts a decoded image to the input of the tower. Raises ValueError for a refused size.
        features: of each image, given the model and the output of `get_image_features` for all of them.
        modules: names of the modules of the model's body that compute features from pixels.
        along: dimension along which the inputs of several images are concatenated.
        in_grid: placeholders have two-dimensional positions (M-RoPE, arXiv:2409.12191, section 2.1).
        towers: supported model types of towers; empty: the family has only one.
        decides: keys of the model's configuration that determine the tokens of an image, besides its processor.
    """

    layout: Callable[[Reader, int, int], Sequence[int | None]]
    pixels: Callable[[Reader, Any], Pixels]
    features: Callable[[Any, Any, Sequence[Pixels]], list[Seen]]
    modules: tuple[str, ...]
    along: int = 0
    in_grid: bool = False
    towers: tuple[str, ...] = ()
    decides: tuple[str, ...] = ()

    def joined(self, images: Sequence[Pixels]) -> dict[str, Tensor]:
        """The arguments of `get_image_features` for several images."""
        import torch

        names = images[0].inputs if images else ()
        return {name: torch.cat([image.inputs[name] for image in images], self.along) for name in names}

    def tower(self, model: Any, images: Sequence[Pixels]) -> list[Seen]:
        """Runs the tower on images (at least one). The features of each."""
        inputs = {name: tensor.to(model.device) for name, tensor in self.joined(images).items()}
        return self.features(model, model.get_image_features(**inputs), images)

    def eyes(self, model: Any) -> list[Any]:
        """The modules of a model that make features of pixels: the tower and its connector."""
        return [getattr(model.model, name) for name in self.modules]

    def settings(self, config: Any) -> Mapping[str, Any]:
        """The values of `decides`."""
        own = config.to_dict()
        return {key: _at(own, key.split(".")) for key in self.decides}


def _at(values: Any, path: list[str]) -> Any:
    return _at(values[path[0]], path[1:]) if path else values
