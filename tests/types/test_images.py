"""What is taken for an image, and what is said of what is not."""

from __future__ import annotations

import base64
import io
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest
from PIL import Image as PIL

from agentrl.config.limits import Limits
from agentrl.tools.base import ToolResult
from agentrl.types.parts import content, image
from agentrl.types.parts.image import ImageInfo, ImageRefused, checked_image, data_url, image_info
from agentrl.types.parts.intake import Images
from agentrl.types.task import Task
from agentrl.types.values import ValueRefused
from tests.images import RED, _chunk, png


def encoded(format: str, size: tuple[int, int] = (31, 17), **more: Any) -> bytes:
    out = io.BytesIO()
    PIL.new("RGB", size, (10, 200, 30)).save(out, format, **more)
    return out.getvalue()


@pytest.mark.parametrize(
    ("format", "more"),
    [
        ("PNG", {}),
        ("JPEG", {}),
        ("JPEG", {"progressive": True}),
        ("GIF", {}),
        ("WEBP", {}),
        ("WEBP", {"lossless": True}),
    ],
)
def test_the_size_of_each_format_is_read_and_a_file_that_is_cut_off_is_refused(format: str, more: Any) -> None:
    data = encoded(format, **more)
    assert image_info(data) == ImageInfo(format.lower(), 31, 17)
    for cut in (len(data) - 4, len(data) // 2, 14):
        with pytest.raises(ImageRefused, match="cut off or damaged"):
            image_info(data[:cut])


def test_an_animated_webp_has_the_size_of_its_canvas() -> None:
    frames = [PIL.new("RGB", (9, 5), (k, 0, 0)) for k in (1, 200)]
    out = io.BytesIO()
    frames[0].save(out, "WEBP", save_all=True, append_images=frames[1:])
    assert image_info(out.getvalue()) == ImageInfo("webp", 9, 5)


def test_what_is_no_image_is_refused_with_what_it_is() -> None:
    with pytest.raises(ImageRefused, match=r"4 bytes are no image: the file begins with b'%PDF'"):
        checked_image(b"%PDF")
    with pytest.raises(ImageRefused, match="is empty"):
        checked_image(b"")
    with pytest.raises(ImageRefused, match=r"an image is 42 \(int\)"):
        checked_image(42)
    with pytest.raises(ImageRefused, match="cannot be read: No such file"):
        checked_image("nowhere.png")
    with pytest.raises(ImageRefused, match="data URL of an image is damaged"):
        checked_image("data:image/png;base64,????")
    damaged = bytearray(RED)
    damaged[40] ^= 1
    with pytest.raises(ImageRefused, match="damaged"):
        checked_image(bytes(damaged))
    with pytest.raises(ImageRefused, match="0 x 3 pixels"):
        checked_image(png(0, 3))


def test_bytes_paths_data_urls_and_pil_images_are_taken(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(RED)
    for given in (RED, memoryview(RED), path, str(path), data_url(RED)):
        assert checked_image(given) == RED
    for mode in ("RGB", "RGBA", "L", "1", "CMYK", "P"):
        assert image_info(checked_image(PIL.new(mode, (4, 3)))) == ImageInfo("png", 4, 3)


def test_a_task_holds_images_as_json(tmp_path: Path) -> None:
    parts = ["Which colour?", {"type": "image", "image": RED}, {"type": "image", "path": "shots/a.png"}]
    parts.append({"type": "image_url", "image_url": {"url": data_url(RED)}})
    task = Task.of("t", [{"role": "user", "content": parts}])
    assert task.instruction[0]["content"] == [
        {"type": "text", "text": "Which colour?"},
        {"type": "image", "image": f"data:image/png;base64,{base64.b64encode(RED).decode()}"},
        {"type": "image", "image": "shots/a.png"},
        {"type": "image", "image": data_url(RED)},
    ]


@pytest.mark.parametrize("part", [{"type": "audio", "audio": "x"}, {"type": "image"}, {"type": "text"}, 7, None])
def test_a_part_that_is_none_is_refused(part: Any) -> None:
    with pytest.raises(ValueRefused, match=r"part 1 of message 0 of the opening is"):
        content.messages([{"role": "user", "content": ["a", part]}], "the opening")


def test_contents_are_joined() -> None:
    part = {"type": "image", "blob": "ab"}
    assert content.joined("a", "b") == "ab"
    assert content.joined("a", [part], "", "b") == [
        {"type": "text", "text": "a"}, part, {"type": "text", "text": "b"},
    ]  # fmt: skip
    assert content.text_of(content.joined("a", [part], "b")) == "a[image]b"


def test_an_image_of_a_million_parts_is_refused() -> None:
    """To look through them takes seconds in the event loop."""
    chunk = struct.pack(">I4s", 0, b"teXt") + struct.pack(">I", zlib.crc32(b"teXt"))
    png = encoded("PNG")
    assert image_info(png[:33] + chunk * 1000 + png[33:]).width == 31
    jpeg = encoded("JPEG")
    for many in (png[:33] + chunk * 200_000 + png[33:], jpeg[:2] + b"\xff\xfe\x00\x02" * 200_000 + jpeg[2:]):
        with pytest.raises(ImageRefused, match="damaged"):
            image_info(many)
    with pytest.raises(ImageRefused, match="damaged"):
        image_info(jpeg[:2] + b"\xff" * 500_000)


def test_the_header_of_an_image_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """From a tool's result to the record and the engine's check."""
    parsed: list[int] = []

    def counted(data: bytes) -> ImageInfo | None:
        parsed.append(len(data))
        return image._png(data)

    class Engine:
        sees = True

        def check_image(self, data: bytes) -> None:
            assert image_info(data).width == 5

    monkeypatch.setattr(image, "_READERS", ((b"\x89PNG", counted),))
    result = ToolResult("", images=[png(5, 3)])
    again = ToolResult(result.text, images=result.images)
    part = Images(Engine(), Limits()).take(again.images[0])
    assert (part["width"], part["height"], part["format"]) == (5, 3, "png")
    assert len(parsed) == 1
    with pytest.raises(ImageRefused):
        ToolResult("", images=[bytes(again.images[0])[:-1]])


def test_a_png_has_one_header() -> None:
    """Decoders take the first of two, and what bounds an image took the last."""
    large, small = (_chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)) for side in (9000, 1))
    whole = png()
    signature, data = whole[:8], whole[33:-12]
    for made in (signature + large + data + small + whole[-12:], signature + small + large + data + whole[-12:]):
        with pytest.raises(ImageRefused, match="cut off or damaged"):
            image_info(made)
    with pytest.raises(ImageRefused, match="cut off or damaged"):
        image_info(signature + data + small + whole[-12:])
