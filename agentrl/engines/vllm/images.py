"""The images of prompts as vLLM's token endpoint takes them: their places among the tokens, and the tower's tensors.

vLLM's own processor is not asked: the tokens are those of the record, and the tensors those that the trainer computes.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from agentrl.chat.tokenizer import Tokenizer
from agentrl.types.parts.content import image_parts
from agentrl.types.parts.image import ImageRefused
from agentrl.types.parts.placeholders import placed
from agentrl.types.task import Message

if TYPE_CHECKING:
    from torch import Tensor

    from agentrl.models.vision.processor import ImageProcessor

KEPT = 16
"""Encoded images in memory, of up to some 25 MB each; others are encoded again."""

_QWEN = {"pixel_values": ("flat", False), "image_grid_thw": ("batched", True)}

FAMILIES = {"qwen2_vl": _QWEN, "qwen2_5_vl": _QWEN, "qwen3_vl": _QWEN}
"""By `model_type`: how vLLM stacks each tensor of an image, and whether it stays on the CPU."""

_RAW = 3
"""vLLM's msgpack extension of a tensor's bytes (vllm/v1/serial_utils.py)."""


class ShownImages:
    """The images that sessions show.

    Args:
        processor: of the model.
        placeholder: the model's token id for what it sees.
    """

    def __init__(self, processor: ImageProcessor, placeholder: int) -> None:
        self._placeholder, self.check = placeholder, processor.check
        fields = FAMILIES[processor.config.model_type]
        self._sessions: dict[str, tuple[list[Message], Callable[[str], bytes] | None]] = {}
        # Servers keep images by name. One of another processor has other tensors, and must have another name.
        self._tag = hashlib.sha256(msgspec.json.encode(processor.settings, order="sorted")).hexdigest()[:16]
        self._encoded = lru_cache(maxsize=KEPT)(lambda blob, read: encoded(processor.pixels(read(blob)).inputs, fields))

    def begin(self, session: str, messages: list[Message]) -> None:
        """A session with a live conversation."""
        self._sessions[session] = messages, None

    def use(self, session: str, read: Callable[[str], bytes]) -> None:
        """How the images of a session are read."""
        if session in self._sessions:
            self._sessions[session] = self._sessions[session][0], read

    def end(self, session: str) -> None:
        """Forgets a session."""
        self._sessions.pop(session, None)

    def shown(self, token_ids: Sequence[int], session: str) -> dict[str, Any]:
        """The part of a request that holds a prompt with images.

        Raises:
            ImageRefused: the prompt names an image that the session does not show, or that cannot be decoded.
        """
        messages, read = self._sessions.get(session, ([], None))
        blobs: list[str] = []
        ranges: list[dict[str, int]] = []
        for place in placed(token_ids, [part["blob"] for part in image_parts(messages)]):
            if place.blob is None or read is None:
                raise ImageRefused("a prompt names an image that is not known", remedy="give the image itself")
            if place.position == 0:
                blobs.append(place.blob)
                ranges.append({"offset": place.at, "length": 0})
            ranges[-1]["length"] += 1
        features = {
            "mm_hashes": {"image": [f"{blob}-{self._tag}" for blob in blobs]},
            "mm_placeholders": {"image": ranges},
            "kwargs_data": {"image": [self._encoded(blob, read) for blob in blobs]},
        }
        return {"token_ids": [self._placeholder if t < 0 else t for t in token_ids], "features": features}


def shown_images(tokenizer: Tokenizer) -> ShownImages | None:
    """The images of a model that sees; None if it takes text only, or vLLM is not shown images of its family."""
    processor: Any = getattr(tokenizer, "processor", None)
    if not hasattr(processor, "pixels") or processor.config.model_type not in FAMILIES:
        return None
    return ShownImages(processor, tokenizer.controls[processor.placeholder])


def encoded(inputs: dict[str, Tensor], fields: Mapping[str, tuple[str, bool]]) -> str:
    """One image as vLLM's `MultiModalKwargsItem`, in base64.

    Args:
        inputs: arguments of the tower; each tensor's first dimension is that of patches (`flat`) or images (`batched`).
        fields: of `FAMILIES`.
    """
    item = {}
    for name, (kind, on_cpu) in fields.items():
        tensor, how = inputs[name], {"keep_on_cpu": on_cpu}
        if kind == "flat":
            field: dict[str, Any] = {**how, "slices": [[0, len(tensor), None]], "dim": 0}
            item[name] = {"data": _tensor(tensor), "field": (kind, field)}
        else:
            item[name] = {"data": _tensor(tensor[0]), "field": (kind, how)}
    return base64.b64encode(msgspec.msgpack.encode(item)).decode("ascii")


def _tensor(tensor: Tensor) -> tuple[str, list[int], msgspec.msgpack.Ext]:
    plain = tensor.detach().cpu().contiguous().numpy()
    return str(tensor.dtype).removeprefix("torch."), list(tensor.shape), msgspec.msgpack.Ext(_RAW, plain.tobytes())
