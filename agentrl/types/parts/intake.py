"""Images of an episode: stores them as blobs of the run, for engines that take images."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, Protocol

from agentrl.types.errors import AgentRLError
from agentrl.types.parts.content import Part
from agentrl.types.parts.image import ImageRefused, checked_image

MB = 1_000_000

TAKES_IMAGES = "engine.use: openai takes images in messages of users and tools; or leave the image out (docs/images.md)"
"""Remedy if an image cannot be shown."""


class ImageLimits(Protocol):
    """Limits on the size of an image: `limits` of a recipe."""

    @property
    def image_mb(self) -> float:
        """Size of its file, in millions of bytes."""

    @property
    def image_pixels(self) -> int:
        """Width times height."""


class Viewer(Protocol):
    """An engine, as far as images concern it: `agentrl.types.engine.Engine`."""

    @property
    def name(self) -> str:
        """For messages."""

    @property
    def sees(self) -> bool:
        """True if it takes images."""

    def check_image(self, data: bytes) -> None:
        """Checks that its model takes an image file."""


class CannotSee(ImageRefused):
    """An image was handed to an engine that takes text only."""


class Images:
    """Converts images to parts of messages.

    Args:
        engine: that will be shown them; None: any that takes images.
        put: stores bytes as a blob, returns their hash; None: they are stored here.
        get: returns the bytes of a blob.

    Attributes:
        taken: parts so far, by the hash of their file.
    """

    def __init__(
        self,
        engine: Viewer | None,
        limits: ImageLimits,
        put: Callable[[bytes], str] | None = None,
        get: Callable[[str], bytes] | None = None,
    ) -> None:
        self._engine, self._limits, self._put, self._get = engine, limits, put, get
        self._own: dict[str, bytes] = {}
        self.taken: dict[str, Part] = {}

    def take(self, given: Any) -> Part:
        """Returns the result of `part` and remembers it."""
        part = self.part(given)
        self.taken[part["blob"]] = part
        return part

    def part(self, given: Any) -> Part:
        """Makes a part of a message: bytes, a path, a data URL or a PIL image as a blob; a part of a record unchanged.

        Raises:
            CannotSee: the engine takes text only.
            ImageRefused: it is not an image, damaged, larger than the limits, or not accepted by the engine's model.
        """
        if self._engine is not None:
            check_sees(self._engine)
        if isinstance(given, dict):
            given = self.read(str(given["blob"]))
        data = checked_image(given)
        found, limits = data.info, self._limits
        if len(data) > limits.image_mb * MB:
            raise ImageRefused(
                f"an image has {len(data) / MB:.1f} MB, and limits.image_mb is {limits.image_mb:g}",
                remedy="make it smaller, or raise limits.image_mb",
            )
        if found.width * found.height > limits.image_pixels:
            raise ImageRefused(
                f"an image has {found.width} x {found.height} pixels, and limits.image_pixels is {limits.image_pixels}",
                remedy="make it smaller, or raise limits.image_pixels",
            )
        if self._engine is not None:
            self._engine.check_image(data)
        return {"type": "image", "blob": self._keep(data), "width": found.width, "height": found.height} | {
            "format": found.format
        }

    def read(self, blob: str) -> bytes:
        """Returns the file of an image.

        Raises:
            ImageRefused: no blob of the run has this hash.
        """
        if blob in self._own:
            return self._own[blob]
        try:
            if self._get is not None:
                return self._get(blob)
        except (AgentRLError, KeyError):
            pass
        raise ImageRefused(f"the run has no blob {blob[:80]!r}", remedy="give the image itself: bytes, or a path")

    def _keep(self, data: bytes) -> str:
        if self._put is not None and self._get is not None:
            return self._put(data)
        sha = hashlib.sha256(data).hexdigest()
        self._own[sha] = data
        if self._put is not None:
            self._put(data)
        return sha


def check_sees(engine: Viewer) -> None:
    """Checks that an engine takes images.

    Raises:
        CannotSee: it does not.
    """
    if not engine.sees:
        raise cannot_see(engine.name)


def cannot_see(engine: str, place: str | None = None) -> CannotSee:
    """Returns the error for an image that is to be shown to an engine of this name."""
    return CannotSee(f"the engine {engine} takes text only: it is shown an image", place=place, remedy=TAKES_IMAGES)
