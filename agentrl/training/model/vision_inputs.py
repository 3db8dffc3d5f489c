"""The sight of a policy in training: the tower runs once for each image of a minibatch, with a gradient."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agentrl.config.train import OptimiserSettings
from agentrl.models.load import LoadedModel
from agentrl.models.vision.encoder import VisionEncoder, in_micro_batches, sample_image
from agentrl.models.vision.families import family_of
from agentrl.models.vision.family import Pixels, Seen
from agentrl.models.vision.image_registry import ImageRegistry
from agentrl.models.vision.processor import ImageProcessor
from agentrl.training.model.packing import Ints, Pack
from agentrl.types.errors import TrainError
from agentrl.types.parts.image import ImageRefused
from agentrl.types.sample import TrainingSample


@dataclass(frozen=True)
class VisionInputs:
    """Inputs of a trainer for samples with images.

    Attributes:
        processor: of the model.
        read: returns the file of an image by its hash.
        budget: maximum number of patches in one pass of the tower.
    """

    processor: ImageProcessor
    read: Callable[[str], bytes]
    budget: int


def vision_of(loaded: LoadedModel, read: Callable[[str], bytes], settings: OptimiserSettings) -> VisionInputs | None:
    """The eyes of a loaded model; None if it takes text only."""
    return None if loaded.processor is None else VisionInputs(loaded.processor, read, settings.patch_budget)


def freeze_vision_tower(model: Any) -> None:
    """Freezes the modules that compute image features.

    Raises:
        TrainError: the model takes text only.
    """
    if (family := family_of(model.config)) is None:
        raise TrainError(
            f"a {model.config.model_type} has no vision tower", place="train.freeze_vision_tower", remedy="leave it out"
        )
    for module in family.eyes(model):
        module.requires_grad_(False)


class TrainedSight(VisionEncoder):
    """The sight of a model that trains. It knows images within `minibatch` only."""

    def __init__(self, model: Any, eyes: VisionInputs) -> None:
        super().__init__(model, ImageRegistry(eyes.processor))
        self._eyes = eyes

    @property
    def trains(self) -> bool:
        """True if the vision tower trains. Otherwise no gradient is computed for its features."""
        return any(p.requires_grad for module in self._family.eyes(self.model) for p in module.parameters())

    @contextmanager
    def minibatch(self, samples: Sequence[TrainingSample]) -> Iterator[None]:
        """Within the block, packs of these samples can be computed. The tower runs once for each of their images.

        Gradients of the block's backward passes gather at the features, and go through the tower at the end of the
        block. Images beyond one micro-batch are forwarded again for that, so that only one micro-batch of activations
        is in memory.

        Raises:
            TrainError: an image cannot be read, or is of no episode.
        """
        album = self.album = ImageRegistry(self._eyes.processor)
        self.seen = {}
        for blob in {blob for sample in samples for blob in sample.images}:
            album.add(blob, self._eyes.read)
        try:
            numbers = self._numbers(samples)
            batches = in_micro_batches(self.album, numbers, self._eyes.budget)
            begun = deque(islice(batches, 2))  # images are decoded once: a second batch shows that there are several
            keeps = self.trains and len(begun) == 1
            ahead = (begun.popleft() for _ in range(len(begun)))  # no batch is held longer than it is looked at
            made = [(list(pixels), self._look(pixels, keeps_graph=keeps)) for pixels in chain(ahead, batches)]
            yield
            for batch, graph in made:
                self._backward(batch, graph)
        except ImageRefused as error:
            raise TrainError(error.message, place="training samples", remedy=error.remedy) from error
        finally:
            if self.album is album:  # not yet that of a later block
                self.seen, self.album = {}, ImageRegistry(self._eyes.processor)

    @contextmanager
    def sample(self) -> Iterator[list[int]]:
        """Within the block, one small image is known. Gives its tokens."""
        tokens = sample_image(self.album)
        try:
            number = int(self.places(np.array(tokens, np.int64)).number[0])
            self.seen = self.tower(self._pixels([number]))
            yield tokens
        finally:
            self.seen, self.album = {}, ImageRegistry(self._eyes.processor)

    def _numbers(self, samples: Sequence[TrainingSample]) -> list[int]:
        """The images among the samples' tokens."""
        found = [self.places(sample.token_ids).number for sample in samples if sample.token_ids.min(initial=0) < 0]
        return np.unique(np.concatenate(found)).tolist() if found else []

    def _pixels(self, numbers: Sequence[int]) -> dict[int, Pixels]:
        return {number: self.album.pixels(number) for number in numbers}

    def _look(self, pixels: Mapping[int, Pixels], *, keeps_graph: bool) -> dict[int, Seen] | None:
        """Computes image features as autograd leaves. Returns the features with their graph if `keeps_graph`."""
        with torch.set_grad_enabled(keeps_graph and torch.is_grad_enabled()):
            made = self.tower(pixels)
        trains = self.trains and torch.is_grad_enabled()
        for number, seen in made.items():
            self.seen[number] = Seen(_leaf(seen.features, trains), seen.grid, [_leaf(x, trains) for x in seen.deep])
        return made if keeps_graph else None

    def _backward(self, numbers: Sequence[int], made: dict[int, Seen] | None) -> None:
        """Sends the gradients of the features of images through the tower."""
        leaves = [leaf for number in numbers for leaf in _tensors(self.seen[number])]
        if all(leaf.grad is None for leaf in leaves):
            return
        with torch.enable_grad():
            made = self.tower(self._pixels(numbers)) if made is None else made
        outputs = [tensor for number in numbers for tensor in _tensors(made[number])]
        pairs = [(o, leaf.grad) for o, leaf in zip(outputs, leaves, strict=True) if leaf.grad is not None]
        torch.autograd.backward([output for output, _ in pairs], [grad for _, grad in pairs])

    def pack_positions(self, packed: Pack) -> Ints:
        """Positions of a pack's tokens: int64 [T], or [3, T] where they follow the rows and columns of images."""
        if not self.in_grid:
            return packed.positions
        found = np.empty((3, len(packed.token_ids)), np.int64)
        for segment in packed.segments:
            ids = packed.token_ids[segment.path]
            new = segment.end - segment.start
            found[:, segment.start : segment.end] = self.positions(ids, self.places(ids))[0][:, len(ids) - new :]
        return found


def _leaf(tensor: Tensor, trains: bool) -> Tensor:
    return tensor.detach().requires_grad_(trains)


def _tensors(seen: Seen) -> list[Tensor]:
    return [seen.features, *seen.deep]
