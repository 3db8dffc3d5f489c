"""Coordinates of the model and pixels of the screen."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from agentrl.tools.builtin.gui.screen import Point
from agentrl.types.errors import ToolError

Unit = Literal["pixels", "thousandths", "fractions"]
"""`pixels` of the image that is shown; 0 to 1000 or 0 to 1 from its left and its top."""


@dataclass(frozen=True)
class Scale:
    """How what the model says relates to the screen.

    Attributes:
        screen: its width and height, pixels.
        shown: those of the image that the model sees.
    """

    screen: tuple[int, int]
    shown: tuple[int, int]
    unit: Unit = "pixels"

    def to_screen(self, coordinate: Any) -> Point:
        """The pixel of the screen: the one in the middle of what the shown pixel covers.

        Raises:
            ToolError: it is no point, or outside the screen.
        """
        across, down = self._shares(coordinate)
        return int(across * self.screen[0]), int(down * self.screen[1])

    def in_image(self, point: Point) -> tuple[int, int]:
        """The pixel of the image that the model sees."""
        return point[0] * self.shown[0] // self.screen[0], point[1] * self.shown[1] // self.screen[1]

    def to_model(self, point: tuple[float, float]) -> list[float]:
        """A point of the screen, as the model says it."""
        ends = self.ends
        made = [place * end / size for place, end, size in zip(point, ends, self.screen, strict=True)]
        return [round(value, 3) for value in made] if self.unit == "fractions" else [int(value) for value in made]

    @property
    def ends(self) -> tuple[float, float]:
        """The coordinates of the right and the lower edge."""
        return {"pixels": self.shown, "thousandths": (1000, 1000), "fractions": (1, 1)}[self.unit]

    @property
    def words(self) -> str:
        """What a model is told."""
        if self.unit == "pixels":
            return f"pixels from the left and the top of the {self.shown[0]} x {self.shown[1]} screen"
        return f"from the left and the top of the screen, each from 0 to {self.ends[0]}"

    def _shares(self, coordinate: Any) -> tuple[float, float]:
        """Where it lies between the edges, 0 to below 1."""
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
