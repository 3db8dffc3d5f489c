"""The sight of a model: features of images, and the forward pass of its decoder on text and images."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from agentrl.models.vision.families import FAMILIES
from agentrl.models.vision.family import Pixels, Seen
from agentrl.models.vision.image_registry import ImageRegistry, Ints, Places
from agentrl.types.errors import AgentRLError
from agentrl.types.parts.placeholders import ids_of

Grids = Mapping[int, tuple[int, int]]
"""Rows and columns of placeholders, by number of the image."""


def grid_positions(count: int, places: Places, grids: Grids, base: int = 0) -> tuple[Ints, Ints]:
    """Positions of consecutive tokens.

    Args:
        count: number of tokens.
        places: the placeholders among them. If the first token is in the middle of an image, `base` is that image's.
        base: position of the first token.

    Returns:
        The positions, int64 [3, count], and the position of the token that would follow each, int64 [count].
    """
    positions = np.empty((3, count), np.int64)
    following = np.empty(count, np.int64)
    begins = np.flatnonzero((places.place == 0) | (np.arange(len(places.at)) == 0))
    ends = [*begins[1:].tolist(), len(places.at)][: len(begins)]
    at = 0
    for begin, end in zip(begins.tolist(), ends, strict=True):
        first = int(places.at[begin])
        positions[:, at:first] = base + np.arange(first - at)
        following[at:first] = base + np.arange(first - at) + 1
        base += first - at
        place, at = places.place[begin:end], first + end - begin
        rows, columns = grids[int(places.number[begin])]
        positions[0, first:at] = base
        positions[1, first:at] = base + place // columns
        positions[2, first:at] = base + place % columns
        base += max(rows, columns)
        following[first:at] = base
    positions[:, at:] = base + np.arange(count - at)
    following[at:] = base + np.arange(count - at) + 1
    return positions, following


class VisionEncoder:
    """Vision encoder of a model, with a cache of image features.

    Args:
        model: a vision-language model (`agentrl.models.vision.families`).
        album: the images that its tokens may refer to.

    Attributes:
        seen: features by number of the image.
        in_grid: positions follow the rows and columns of images.
    """

    def __init__(self, model: Any, album: ImageRegistry) -> None:
        self.model, self.album = model, album
        self._family = FAMILIES[model.config.model_type]
        self.in_grid = self._family.in_grid
        self.decoder = model.get_decoder()
        self.seen: dict[int, Seen] = {}

    def tower(self, images: Mapping[int, Pixels]) -> dict[int, Seen]:
        """Runs the vision tower, once per image.

        Raises:
            AgentRLError: the number of features of an image differs from that of the processor.
        """
        if not images:
            return {}
        found = dict(zip(images, self._family.tower(self.model, list(images.values())), strict=True))
        for number, seen in found.items():
            if len(seen.features) != images[number].placeholders:
                raise AgentRLError(
                    f"an image has {images[number].placeholders} placeholders and {len(seen.features)} features",
                    place=self.album.processor.name,
                    remedy="the image processor in the model's folder must be that of the model",
                )
        return found

    def places(self, token_ids: Ints) -> Places:
        """The placeholders among token ids [n].

        Raises:
            ImageRefused: one is of no image that is known.
        """
        return self.album.places(token_ids)

    def positions(self, token_ids: Ints, places: Places, base: int = 0) -> tuple[Ints, Ints]:
        """Applies `grid_positions` to consecutive tokens whose images are encoded."""
        grids = {number: grid for number, each in self.seen.items() if (grid := each.grid) is not None}
        return grid_positions(len(token_ids), places, grids, base)

    def inputs(self, ids: Tensor, places: Places | None = None) -> dict[str, Any]:
        """Returns the decoder's arguments in place of `input_ids`: embeddings, with image features at placeholders.

        Args:
            ids: int64 [..., n]; negative at placeholders.
            places: the placeholders among the flattened ids; None: no placeholders.
        """
        embedded = self.decoder.get_input_embeddings()(ids.clamp(min=0))
        if places is None or not len(places.at):
            return {"inputs_embeds": embedded}
        numbers, order = np.unique(places.number, return_inverse=True)
        images = [self.seen[number] for number in numbers.tolist()]
        starts = np.cumsum([0, *(len(image.features) for image in images)])
        index = torch.from_numpy(starts[order] + places.place).to(ids.device)
        at = torch.from_numpy(places.at).to(ids.device)

        def rows(tables: Sequence[Tensor]) -> Tensor:
            # An embedding lookup: its backward is a fast ordered sum.
            return functional.embedding(index, torch.cat(list(tables))).to(embedded.dtype)

        flat = embedded.flatten(0, -2).index_copy(0, at, rows([image.features for image in images]))
        found: dict[str, Any] = {"inputs_embeds": flat.view_as(embedded)}
        if images[0].deep:
            found["visual_pos_masks"] = ids < 0
            found["deepstack_visual_embeds"] = [rows(layer) for layer in zip(*(i.deep for i in images), strict=True)]
        return found

    def plain_text(self, token_ids: Sequence[int]) -> list[int]:
        """Replaces vision tokens by text tokens: transformers' forward pass would treat them as images."""
        size, vision = self.model.config.get_text_config().vocab_size, self.album.processor.vision_tokens
        words = [token for token in range(size) if token not in vision]
        return [token if token not in vision else words[token % len(words)] for token in token_ids]

    def own_logits(self, token_ids: Sequence[int]) -> Tensor:
        """Logits [n, vocab] of transformers' own forward pass, to which ours are compared when a model is loaded."""
        ids = np.array(token_ids, np.int64)
        places, config = self.places(ids), self.model.config
        shown = [self.album.pixels(number) for number in places.number[places.place == 0].tolist()]
        joined = self._family.joined(shown)
        plain = torch.from_numpy(np.where(ids < 0, config.image_token_id, ids))[None].to(self.model.device)
        if self.in_grid and shown:
            joined["mm_token_type_ids"] = torch.from_numpy((ids < 0).astype(np.int64))[None]
        own = {name: tensor.to(self.model.device) for name, tensor in joined.items()}
        logits: Tensor = self.model(input_ids=plain, use_cache=False, **own).logits[0]
        return logits


class KeptSight(VisionEncoder):
    """A sight that keeps features, up to a number of bytes, the most recently used ones. Without gradients.

    Args:
        keep: bytes of features.
    """

    def __init__(self, model: Any, album: ImageRegistry, keep: int) -> None:
        super().__init__(model, album)
        self._keep, self._used = keep, 0
        self.seen: OrderedDict[int, Seen] = OrderedDict()
        self.looked = 0

    def look(self, numbers: Iterable[int]) -> None:
        """Computes missing features of images. Runs the tower image by image, so that features do not depend on the
        batch.

        Raises:
            ImageRefused: an image cannot be read.
        """
        wanted = dict.fromkeys(numbers)
        for number in wanted:
            if number in self.seen:
                self.seen.move_to_end(number)
                continue
            self.seen.update(self.tower({number: self.album.pixels(number)}))
            self._used += self.seen[number].nbytes
            self.looked += 1
        while self._used > self._keep and (oldest := next(iter(self.seen))) not in wanted:
            self._used -= self.seen.pop(oldest).nbytes

    def forget(self) -> None:
        """Drops all features: the weights have changed."""
        self.seen.clear()
        self._used = 0


def sample_image(album: ImageRegistry) -> list[int]:
    """Adds a small image to an album. Returns its tokens, for a comparison with transformers' own forward pass."""
    data = _stripes()
    number = album.add(_SAMPLE, lambda _: data)
    from agentrl.types.parts.image import image_info

    found = image_info(data)
    layout = album.processor.layout(found.width, found.height)
    own = iter(ids_of(_SAMPLE, sum(token is None for token in layout)))
    assert number in album
    return [next(own) if token is None else token for token in layout]


_SAMPLE = "a sample image"


def _stripes() -> bytes:
    from PIL import Image

    from agentrl.types.parts.image import image_bytes

    ramp = np.linspace(0, 255, 40 * 30 * 3).reshape(30, 40, 3) % 97 * 2
    return image_bytes(Image.fromarray(ramp.astype(np.uint8)))


def in_micro_batches(album: ImageRegistry, numbers: Iterable[int], most: int) -> Iterator[dict[int, Pixels]]:
    """Images with at most `most` patches together; a larger one is alone. Files are read as they are needed."""
    some: dict[int, Pixels] = {}
    for number in numbers:
        pixels = album.pixels(number)
        if some and sum(each.patches for each in some.values()) + pixels.patches > most:
            yield some
            some = {}
        some[number] = pixels
    if some:
        yield some
