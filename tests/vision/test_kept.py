"""Pixels are made once for an image that is shown again, and what is kept is bounded."""

from __future__ import annotations

import pickle

import pytest
import torch

from agentrl.models.vision.family import Pixels
from agentrl.models.vision.image_registry import ImageRegistry
from agentrl.models.vision.processor import KeptPixels
from agentrl.types.parts.image import ImageRefused
from tests.images import BLUE, RED
from tests.vision.families import FAMILIES

KILOBYTE = {"pixel_values": torch.zeros(256)}


def test_minibatches_share_what_was_decoded() -> None:
    processor = FAMILIES["qwen2_vl"]().processor
    assert processor is not None
    reads: list[str] = []

    def read(blob: str) -> bytes:
        reads.append(blob)
        return RED if blob == "red" else BLUE

    for _ in range(3):
        album = ImageRegistry(processor)
        red, blue = (album.add(blob, read) for blob in ("red", "blue"))
        seen = [album.pixels(number).inputs["pixel_values"] for number in (red, blue)]
        assert not torch.equal(*seen)
    assert reads == ["red", "blue"]


def test_what_was_used_last_is_kept_up_to_a_number_of_bytes() -> None:
    made: list[str] = []
    kept = KeptPixels(most=3 * 1024)

    def get(blob: str) -> None:
        kept.get(blob, lambda: made.append(blob) or Pixels(KILOBYTE, 1))  # type: ignore[func-returns-value]

    for blob in "abcadae":  # d puts b out, e puts c out
        get(blob)
    assert "".join(made) == "abcde"
    get("a")
    get("c")
    assert "".join(made) == "abcdec"


def test_an_image_that_is_too_large_puts_nothing_out() -> None:
    kept = KeptPixels(most=1024)
    small = kept.get("small", lambda: Pixels(KILOBYTE, 1))
    kept.get("large", lambda: Pixels({"pixel_values": torch.zeros(512)}, 1))
    assert kept.get("small", lambda: Pixels({}, 0)) is small


def test_a_processor_goes_to_another_process() -> None:
    """As those of rollout workers do; without the pixels that are kept here."""
    processor = FAMILIES["qwen2_vl"]().processor
    assert processor is not None
    pixels = processor.kept.get("red", lambda: processor.pixels(RED))
    other = pickle.loads(pickle.dumps(processor))
    assert torch.equal(other.pixels(RED).inputs["pixel_values"], pixels.inputs["pixel_values"])
    assert other.kept.get("red", lambda: other.pixels(BLUE)) is not pixels


def test_a_refusal_is_passed_on_and_not_kept() -> None:
    def broken() -> Pixels:
        raise ImageRefused("broken", remedy="mend it")

    kept = KeptPixels()
    for _ in range(2):
        with pytest.raises(ImageRefused):
            kept.get("x", broken)
