"""Conversion between the model's coordinates and screen pixels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from agentrl.tools.builtin.gui.screen import Point
from agentrl.types.errors import ToolError

Unit = Literal["pixels", "thousandths", "fractions"]
"""`pixels` of the shown image; 0 to 1000 or 0 to 1 from its left and top."""


@dataclass(frozen=True)
class Scale:
    """Mapping between the model's coordinates and the screen.

    Attributes:
        screen: width and height of the screen, pixels.
        shown: width and height of the image shown to the model, pixels.
    """

    screen: tuple[int, int]
    shown: tuple[int, int]
    unit: Unit = "pixels"

    def to_screen(self, coordinate: Any) -> Point:
        """Converts to screen pixels: the middle of the area that the shown pixel covers.

        Raises:
            ToolError: the coordinate is malformed or outside the screen.
        """
        across, down = self._shares(coordinate)
        return int(across * self.screen[0]), int(down * self.screen[1])

    def in_image(self, point: Point) -> tuple[int, int]:
        """Converts a screen pixel to a pixel of the shown image."""
        return point[0] * self.shown[0] // self.screen[0], point[1] * self.shown[1] // self.screen[1]

    def to_model(self, point: tuple[float, float]) -> list[float]:
        """Converts a screen point to the model's coordinates."""
        ends = self.ends
        made = [place * end / size for place, end, size in zip(point, ends, self.screen, strict=True)]
        return [round(value, 3) for value in made] if self.unit == "fractions" else [int(value) for value in made]

    @property
    def ends(self) -> tuple[float, float]:
        """Coordinates of the right and the lower edge."""
        return {"pixels": self.shown, "thousandths": (1000, 1000), "fractions": (1, 1)}[self.unit]

    @property
    def words(self) -> str:
        """Description of the coordinates for the model."""
        if self.unit == "pixels":
            return f"pixels from the left and the top of the {self.shown[0]} x {self.shown[1]} screen"
        return f"from the left and the top of the screen, each from 0 to {self.ends[0]}"

    def _shares(self, coordinate: Any) -> tuple[float, float]:
        """Converts a coordinate to fractions of the screen, in [0, 1)."""
        ends = self.ends
        try:
            given = tuple(map(float, coordinate))
        except (TypeError, ValueError, OverflowError):
            given = ()
        if len(given) != 2 or not all(map(math.isfinite, given)):
            raise ToolError(f"a coordinate is [x, y], {self.words}; found {coordinate!r}")
        last = tuple(end - 1 for end in ends) if self.unit == "pixels" else ends
        if not all(0 <= value <= end for value, end in zip(given, last, strict=True)):
            raise ToolError(f"{coordinate} is outside the screen: coordinates end at {list(last)}")
        half = 0.5 if self.unit == "pixels" else 0.0
        x, y = (min((int(v) + half) / e if half else v / e, 1 - 1e-9) for v, e in zip(given, ends, strict=True))
        return x, y
