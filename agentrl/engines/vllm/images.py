"""Images of prompts in the format of vLLM's token endpoint: positions among the tokens, and input tensors.

vLLM's processor is not used: the tokens are those of the record, and the tensors those of the trainer.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from agentrl.chat.tokenizer import Tokenizer
from agentrl.types.parts.content import image_parts
from agentrl.types.parts.image import ImageRefused
from agentrl.types.parts.placeholders import Placed, placed
from agentrl.types.task import Message

if TYPE_CHECKING:
    from torch import Tensor

    from agentrl.models.vision.processor import ImageProcessor

Field = tuple[str, dict[str, Any]]
"""vLLM's rule for stacking a tensor of several images (vllm/multimodal/inputs.py)."""

Item = dict[str, tuple["Tensor", Field]]
"""Arguments of a tower, for one run of placeholders."""

_RAW = 3
"""vLLM's msgpack extension of a tensor's bytes (vllm/v1/serial_utils.py)."""


class ShownImages:
    """The images of each session.

    Args:
        processor: of the model.
        placeholder: the model's image placeholder token.
    """

    def __init__(self, processor: ImageProcessor, placeholder: int) -> None:
        self._processor, self._placeholder = processor, placeholder
        self._sessions: dict[str, tuple[list[Message], Callable[[str], bytes] | None]] = {}
        # Servers keep images by name. One of another processor has other tensors, and must have another name.
        self._tag = hashlib.sha256(msgspec.json.encode(processor.settings, order="sorted")).hexdigest()[:16]

    def check(self, data: bytes) -> None:
        """Raises ImageRefused if the model cannot be shown an image."""
        self._processor.check(data)

    def begin(self, session: str, messages: list[Message]) -> None:
        """A session with a live conversation."""
        self._sessions[session] = messages, None

    def use(self, session: str, read: Callable[[str], bytes]) -> None:
        """Sets the function that reads images of a session."""
        if session in self._sessions:
            self._sessions[session] = self._sessions[session][0], read

    def end(self, session: str) -> None:
        """Forgets a session."""
        self._sessions.pop(session, None)

    def shown(self, token_ids: Sequence[int], session: str) -> dict[str, Any]:
        """Builds the part of a request for a prompt with images.

        Raises:
            ImageRefused: the prompt names an image that the session does not show, or that cannot be decoded.
        """
        messages, read = self._sessions.get(session, ([], None))
        runs: list[list[Placed]] = []
        for place in placed(token_ids, [part["blob"] for part in image_parts(messages)]):
            if place.blob is None or read is None:
                raise ImageRefused("a prompt names an image that is not known", remedy="give the image itself")
            last = runs[-1][-1] if runs else None
            goes_on = last is not None and (last.blob, last.position + 1) == (place.blob, place.position)
            if place.position and not goes_on:
                raise ImageRefused("a prompt begins in the middle of an image", remedy="keep images whole")
            if last is None or not place.position or place.at != last.at + 1:
                runs.append([])
            runs[-1].append(place)
        numbers: list[int] = []
        for run in runs:
            numbers.append(0 if run[0].position == 0 else numbers[-1] + 1)
        items = {blob: self._items(blob, read) for blob in {run[0].blob for run in runs}}
        features = {
            "mm_hashes": {"image": [f"{run[0].blob}-{k}-{self._tag}" for run, k in zip(runs, numbers, strict=True)]},
            "mm_placeholders": {"image": [{"offset": run[0].at, "length": len(run)} for run in runs]},
            "kwargs_data": {"image": [items[run[0].blob][k] for run, k in zip(runs, numbers, strict=True)]},
        }
        return {"token_ids": [self._placeholder if t < 0 else t for t in token_ids], "features": features}

    def _items(self, blob: str | None, read: Callable[[str], bytes] | None) -> list[str]:
        """An image's items, encoded. The trainer may have its pixels at hand."""
        assert blob is not None
        assert read is not None
        pixels = self._processor.kept.get(blob, lambda: self._processor.pixels(read(blob)))
        return [encoded(item) for item in FAMILIES[self._processor.config.model_type](pixels.inputs)]


def shown_images(tokenizer: Tokenizer) -> ShownImages | None:
    """The images of a model that sees; None if it takes text only, or if its family has no images on vLLM."""
    processor: Any = getattr(tokenizer, "processor", None)
    if not hasattr(processor, "pixels") or processor.config.model_type not in FAMILIES:
        return None
    return ShownImages(processor, tokenizer.controls[processor.placeholder])


def encoded(item: Item) -> str:
    """vLLM's `MultiModalKwargsItem` in base64."""
    found = {name: {"data": _tensor(tensor), "field": field} for name, (tensor, field) in item.items()}
    return base64.b64encode(msgspec.msgpack.encode(found)).decode("ascii")


def _tensor(tensor: Tensor) -> tuple[str, list[int], msgspec.msgpack.Ext]:
    plain = tensor.detach().cpu().contiguous().numpy()
    return str(tensor.dtype).removeprefix("torch."), list(tensor.shape), msgspec.msgpack.Ext(_RAW, plain.tobytes())


def _flat(tensor: Tensor) -> tuple[Tensor, Field]:
    """Rows of an image, which vLLM joins with those of others."""
    return tensor, ("flat", {"keep_on_cpu": False, "slices": [[0, len(tensor), None]], "dim": 0})


def _one(tensor: Tensor, *, on_cpu: bool = False) -> tuple[Tensor, Field]:
    """A tensor with one entry per image."""
    return tensor, ("batched", {"keep_on_cpu": on_cpu})


def _grid(inputs: dict[str, Tensor]) -> list[Item]:
    grid = _one(inputs["image_grid_thw"][0], on_cpu=True)
    return [{"pixel_values": _flat(inputs["pixel_values"]), "image_grid_thw": grid}]


def _tiles(inputs: dict[str, Tensor]) -> list[Item]:
    """Returns an item per tile: tokens of row and column separate its placeholders from those of the next."""
    tiles, masks = inputs["pixel_values"][0], inputs["pixel_attention_mask"][0]
    return [
        {
            "pixel_values": _flat(tile[None]),
            "pixel_attention_mask": _flat(mask[None]),
            "num_patches": _one(mask.new_tensor(1), on_cpu=True),
        }
        for tile, mask in zip(tiles, masks, strict=True)
    ]


FAMILIES: dict[str, Callable[[dict[str, Tensor]], list[Item]]] = {
    "qwen2_vl": _grid,
    "qwen2_5_vl": _grid,
    "qwen3_vl": _grid,
    "idefics3": _tiles,
}
"""By `model_type`: an image's tensors as items, one for each run of placeholders. LLaVA is absent: vLLM 0.32 does not
load the names that transformers 5 gives to its tower's weights. SmolVLM is absent: it was not tried."""
