"""Images: the formats that user code may hand in, and their headers. Pixels are not decoded here.

PNG, JPEG, WebP and GIF are accepted, as by models and browsers.
"""

from __future__ import annotations

import base64
import binascii
import io
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from agentrl.types.values import ValueRefused, shown

FORMATS = "PNG, JPEG, WebP or GIF"
_SEGMENTS = 50_000
"""Maximum of chunks of a PNG or segments of a JPEG: a million tiny ones would take seconds to parse."""
_GIVE = f"give the bytes or the path of a {FORMATS} file, a PIL image, or a data URL"


class ImageRefused(ValueRefused):
    """A value is not an image, is damaged, or is too large."""


class ImageInfo(msgspec.Struct, frozen=True):
    """Header of an image."""

    format: str
    width: int
    height: int


class ImageFile(bytes):
    """File of an image with its header, so that the header is parsed once."""

    info: ImageInfo


def image_bytes(given: Any) -> bytes:
    """Returns the file of an image, from bytes, a path, a data URL, or a PIL image (as PNG).

    Raises:
        ImageRefused: it is none of these, or the file cannot be read.
    """
    if isinstance(given, bytes | bytearray | memoryview):
        return bytes(given)
    if isinstance(given, str) and given.startswith("data:"):
        return _of_data_url(given)
    if isinstance(given, str | os.PathLike):
        return _of_path(Path(given))
    if is_pil(given):
        out = io.BytesIO()
        (given if given.mode in _PNG_MODES else given.convert("RGBA")).save(out, "PNG")
        return out.getvalue()
    raise ImageRefused(f"an image is {shown(given)}", remedy=_GIVE)


def checked_image(given: Any) -> ImageFile:
    """Returns the file of an image after checking that it is valid and complete; one that was checked, unchanged.

    Raises:
        ImageRefused: as `image_bytes` and `image_info`.
    """
    if isinstance(given, ImageFile):
        return given
    data = image_bytes(given)
    info = image_info(data)
    file = ImageFile(data)
    file.info = info
    return file


def is_pil(value: Any) -> bool:
    """Returns True for an image of Pillow, without importing Pillow."""
    return type(value) is not str and type(value).__module__.partition(".")[0] == "PIL" and hasattr(value, "save")


def image_info(data: bytes) -> ImageInfo:
    """Returns format and size of an image, which must be complete.

    Raises:
        ImageRefused: its format is not accepted, or it is truncated or damaged.
    """
    if isinstance(data, ImageFile):
        return data.info
    read = next((read for start, read in _READERS if data.startswith(start)), None)
    if read is None:
        begins = f"begins with {data[:12]!r}" if data else "is empty"
        raise ImageRefused(f"{len(data)} bytes are no image: the file {begins}", remedy=f"give a {FORMATS} file")
    try:
        found = read(data)
    except (struct.error, IndexError):
        found = None
    if found is None:
        raise ImageRefused(f"an image of {len(data)} bytes is cut off or damaged", remedy="give a whole file")
    if not (found.width and found.height):
        raise ImageRefused(f"an image is {found.width} x {found.height} pixels", remedy="give one with pixels")
    return found


def data_url(data: bytes) -> str:
    """Returns an image as a data URL, for APIs and pages."""
    return f"data:image/{image_info(data).format};base64,{base64.b64encode(data).decode()}"


def _of_data_url(url: str) -> bytes:
    head, _, data = url.partition(",")
    if not head.endswith(";base64"):
        raise ImageRefused(f"an image is {url[:40]!r}...", remedy="write data:image/png;base64,...")
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ImageRefused(f"the data URL of an image is damaged: {error}", remedy=_GIVE) from None


def _of_path(path: Path) -> bytes:
    try:
        return path.expanduser().read_bytes()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise ImageRefused(f"the image {str(path)[:200]!r} cannot be read: {why}", remedy=_GIVE) from None


def _png(data: bytes) -> ImageInfo | None:
    at, found = 8, None
    for _ in range(_SEGMENTS):
        length, kind = struct.unpack_from(">I4s", data, at)
        (checksum,) = struct.unpack_from(">I", data, at + 8 + length)
        if zlib.crc32(memoryview(data)[at + 4 : at + 8 + length]) != checksum:
            return None
        if (kind == b"IHDR") != (at == 8):  # one header, and first: decoders do not agree on a second one
            return None
        if kind == b"IHDR":
            found = ImageInfo("png", *struct.unpack_from(">II", data, at + 8))
        if kind == b"IEND":
            return found
        at += 12 + length
    return None


def _jpeg(data: bytes) -> ImageInfo | None:
    at = 2
    for _ in range(_SEGMENTS):
        if data[at] != 0xFF:
            return None
        kind = data[at + 1]
        if kind == 0xFF:  # a fill byte
            at += 1
            continue
        (length,) = struct.unpack_from(">H", data, at + 2)
        if 0xC0 <= kind <= 0xCF and kind not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack_from(">HH", data, at + 5)
            return ImageInfo("jpeg", width, height) if b"\xff\xd9" in data[at:] else None
        at += 2 + length
    return None


def _gif(data: bytes) -> ImageInfo | None:
    width, height = struct.unpack_from("<HH", data, 6)
    return ImageInfo("gif", width, height) if data.rstrip(b"\0").endswith(b";") else None


def _webp(data: bytes) -> ImageInfo | None:
    (size,) = struct.unpack_from("<I", data, 4)
    if data[8:12] != b"WEBP" or len(data) < size + 8:
        return None
    kind = data[12:16]
    if kind == b"VP8X":
        width, height = (int.from_bytes(data[at : at + 3], "little") + 1 for at in (24, 27))
    elif kind == b"VP8L":
        (bits,) = struct.unpack_from("<I", data, 21)
        width, height = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    else:
        width, height = (side & 0x3FFF for side in struct.unpack_from("<HH", data, 26))
    return ImageInfo("webp", width, height)


_PNG_MODES = ("1", "L", "LA", "P", "RGB", "RGBA")
_READERS: tuple[tuple[bytes, Callable[[bytes], ImageInfo | None]], ...] = (
    (b"\x89PNG\r\n\x1a\n", _png),
    (b"\xff\xd8\xff", _jpeg),
    (b"GIF87a", _gif),
    (b"GIF89a", _gif),
    (b"RIFF", _webp),
)
