"""Image processor of a vision-language model: the tokens of an image, and its pixels for the vision tower.

The arithmetic is transformers' own, of the image processors that need Pillow alone (torchvision is not needed).
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import io
import json
import re
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from agentrl.models.vision.families import family_of
from agentrl.models.vision.family import Family, Pixels
from agentrl.types.errors import RecipeError, needs
from agentrl.types.parts.image import ImageRefused, image_info
from agentrl.types.parts.placeholders import MOST

MOST_BYTES = 64 * 2**20
"""Size of the pixel cache: some thousand small pictures, or a few screenshots."""


class KeptPixels:
    """Pixels by the hash of the image, up to a number of bytes. Engine and trainer may share it.

    Args:
        most: bytes of tensors.
    """

    def __init__(self, most: int = MOST_BYTES) -> None:
        self._most, self._used = most, 0
        self._kept: OrderedDict[str, Pixels] = OrderedDict()
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process begins with none."""
        return KeptPixels, (self._most,)

    def get(self, blob: str, make: Callable[[], Pixels]) -> Pixels:
        """Returns the pixels of an image from the cache, or else from `make`. Errors of `make` propagate."""
        with self._lock:
            if (found := self._kept.get(blob)) is not None:
                self._kept.move_to_end(blob)
                return found
        made = make()
        with self._lock:
            if blob not in self._kept and _bytes(made) <= self._most:
                self._kept[blob] = made
                self._used += _bytes(made)
            while self._used > self._most:
                self._used -= _bytes(self._kept.popitem(last=False)[1])
        return made


def _bytes(pixels: Pixels) -> int:
    return sum(tensor.nbytes for tensor in pixels.inputs.values())


FILES = ("preprocessor_config.json", "processor_config.json")
"""Files of a model's folder that may describe its image processor."""


@dataclass(frozen=True, eq=False)
class ImageProcessor:
    """Reads images for one model. It is the `processor` of the tokenizer (`agentrl.chat.processor.Processor`).

    Attributes:
        family: of the model.
        config: of the model.
        hf: the image processor of transformers.
        placeholder: the control token that the chat template writes for an image.
        vision_tokens: tokens of the vocabulary for images and videos; a policy must not sample them.
        encode: text to token ids, control tokens included.
        kept: cache of the pixels of recently used images.
    """

    family: Family
    config: Any
    hf: Any
    placeholder: str
    vision_tokens: frozenset[int]
    encode: Callable[[str], list[int]]
    kept: KeptPixels = field(default_factory=KeptPixels)

    @property
    def name(self) -> str:
        return f"{type(self.hf).__name__} of {self.config.model_type}"

    @property
    def settings(self) -> Mapping[str, Any]:
        """All that decides how many tokens an image is, and its pixels."""
        own = json.loads(json.dumps(self.hf.to_dict(), default=str))
        decided = self.family.settings(self.config)
        return {"use": self.config.model_type, **{key: own[key] for key in sorted(own)}, **decided}

    def layout(self, width: int, height: int) -> Sequence[int | None]:
        """The tokens of an image: ids of the vocabulary, and None for every placeholder.

        Raises:
            ImageRefused: the model takes no image of this size.
        """
        return _layout(self, width, height)

    def check(self, data: bytes) -> None:
        """Checks that the model accepts an image. Its pixels are computed, and cached for the engine.

        Raises:
            ImageRefused: it cannot be decoded, or has a size or pixels that the model does not take.
        """
        found = image_info(data)
        self.layout(found.width, found.height)
        self.kept.get(hashlib.sha256(data).hexdigest(), lambda: self.pixels(data))

    def pixels(self, data: bytes) -> Pixels:
        """An image as the tower takes it.

        Raises:
            ImageRefused: as `check`.
        """
        image = _decoded(data)
        placeholders = sum(token is None for token in self.layout(image.width, image.height))
        try:
            return replace(self.family.pixels(self, image), placeholders=placeholders)
        except ValueError as error:
            raise ImageRefused(
                f"an image of {image.width} x {image.height} pixels is not taken by {self.name}: {error}",
                remedy="give one with another shape",
            ) from None

    def save_pretrained(self, folder: str) -> None:
        """Writes the description that `load_processor` reads."""
        self.hf.save_pretrained(folder)


@functools.lru_cache(maxsize=1024)
def _layout(processor: ImageProcessor, width: int, height: int) -> tuple[int | None, ...]:
    try:
        found = tuple(processor.family.layout(processor, width, height))
    except ValueError as error:
        raise ImageRefused(
            f"an image of {width} x {height} pixels is not taken by {processor.name}: {error}",
            remedy="give one with another shape",
        ) from None
    if not 0 < sum(token is None for token in found) < MOST:
        raise ImageRefused(f"an image of {width} x {height} pixels is {len(found)} tokens", remedy="make it smaller")
    return found


def load_processor(folder: Path, config: Any, tokenizer: Any) -> ImageProcessor | None:
    """Loads the processor of the model in a folder; None if it takes text only.

    Raises:
        RecipeError: the model takes images, and its folder lacks an image processor.
        MissingExtra: Pillow is not installed.
    """
    if family_of(config) is None:
        return None
    file = next((folder / name for name in FILES if (folder / name).is_file()), None)
    if file is None:
        raise RecipeError(
            f"{folder} has no image processor, and {config.model_type} sees",
            place="model",
            remedy=f"copy {FILES[0]} of the model to the folder",
        )
    with needs("vision"):
        importlib.import_module("PIL")
    said = json.loads(file.read_bytes())
    said = said.get("image_processor", said)
    kind = _class_of(str(said.get("image_processor_type") or said.get("feature_extractor_type")), file)
    return processor_of(config, kind.from_pretrained(folder), tokenizer)


def processor_of(config: Any, hf: Any, tokenizer: Any) -> ImageProcessor | None:
    """The processor for a model's configuration, an image processor of transformers, and a tokenizer.

    Raises:
        RecipeError: the tokenizer has no token for images, or the family's tower is another one.
    """
    if (family := family_of(config)) is None:
        return None
    tower = config.vision_config.model_type
    if family.towers and tower not in family.towers:
        raise RecipeError(
            f"a {config.model_type} whose tower is a {tower} is not supported",
            place="model",
            remedy=f"use one whose tower is a {' or a '.join(family.towers)}",
        )
    token = tokenizer.convert_ids_to_tokens(config.image_token_id)
    if token is None or config.image_token_id not in tokenizer.added_tokens_decoder:
        raise RecipeError(
            f"the tokenizer has no control token {config.image_token_id} for images",
            place="model",
            remedy="use the tokenizer of the same model",
        )
    names = ("image_token_id", "video_token_id")
    seen = {int(own) for name in names if (own := getattr(config, name, None)) is not None}
    encode = functools.partial(tokenizer.encode, add_special_tokens=False)
    return ImageProcessor(family, config, hf, str(token), frozenset(seen), encode)


def _class_of(name: str, file: Path) -> Any:
    """The class of an image processor that needs Pillow alone.

    Raises:
        RecipeError: transformers has none.
    """
    base = re.sub("(Fast|Pil)$", "", name)
    import transformers.models as models

    stem = base.removesuffix("ImageProcessor").removesuffix("FeatureExtractor")
    for module in _MODULES.get(stem, (stem.lower(),)):
        try:
            found = importlib.import_module(f"{models.__name__}.{module}.image_processing_pil_{module}")
        except ImportError:
            continue
        return getattr(found, f"{stem}ImageProcessorPil")
    raise RecipeError(f"there is no image processor {name!r} without torchvision", place=str(file))


_MODULES = {"Qwen2VL": ("qwen2_vl",), "SmolVLM": ("smolvlm",), "CLIP": ("clip",), "Llava": ("llava",)}
"""Modules of transformers whose names differ from their lowercased class names."""


def _decoded(data: bytes) -> Any:
    """Decodes an image to three channels. Transparent pixels become white.

    Raises:
        ImageRefused: it cannot be decoded.
    """
    from PIL import Image

    found = image_info(data)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # limits.image_pixels bounds it
            image = Image.open(io.BytesIO(data))
            if image.size != (found.width, found.height):  # the bound was checked for another size
                raise ValueError(f"its header says {found.width} x {found.height} pixels, its data {image.size}")
            image.load()
        if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
            image = image.convert("RGBA")
            white = Image.new("RGBA", image.size, "white")
            return Image.alpha_composite(white, image).convert("RGB")
        return image.convert("RGB")
    except Exception as error:  # Pillow raises many kinds on broken files
        raise ImageRefused(
            f"an image of {len(data)} bytes cannot be decoded: {type(error).__name__}: {error}",
            remedy="give a whole file",
        ) from None
