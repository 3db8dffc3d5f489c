"""What a screen is, whatever is behind it: pixels, elements, mouse and keyboard."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from agentrl.types.errors import InfraError, ToolServerEnded

Button = Literal["left", "middle", "right"]
Direction = Literal["up", "down", "left", "right"]
Point = tuple[int, int]


class ScreenLost(InfraError):
    """A screen is broken or does not answer: the machine's fault, or nobody's. The episode starts again elsewhere."""


class ScreenEnded(ScreenLost, ToolServerEnded):
    """A screen broke while the model acted on it. What it did to its program may be the reason."""


@dataclass(frozen=True)
class Element:
    """Something on the screen that has a name or can be used.

    Attributes:
        role: `push button`, `menu item`, `text`, ...
        name: its label.
        text: what is written in it.
        states: `focused`, `checked`, `selected`, `editable`, `expanded`, `disabled`.
        box: left, top, right, bottom; pixels of the screen.
    """

    role: str
    name: str
    text: str
    states: tuple[str, ...]
    box: tuple[int, int, int, int]


class Screen(Protocol):
    """A screen with mouse and keyboard. Points are pixels, and lie on it.

    Every method raises ScreenLost if the screen is broken.

    Attributes:
        size: width and height, pixels.
    """

    size: tuple[int, int]

    async def screenshot(self) -> bytes:
        """What is shown now, as a PNG file of `size`."""
        ...

    async def elements(self) -> tuple[list[Element], bool]:
        """What is on it, from top to bottom, and whether that is all: a program may not answer in time."""
        ...

    async def move(self, to: Point) -> None:
        """Puts the pointer there."""
        ...

    async def click(self, at: Point, button: Button = "left", times: int = 1) -> None:
        """Clicks that often."""
        ...

    async def drag(self, start: Point, end: Point) -> None:
        """Drags with the left button."""
        ...

    async def scroll(self, at: Point, direction: Direction, clicks: int) -> None:
        """Turns the wheel."""
        ...

    async def type(self, text: str) -> None:
        """Types a text; a line break is the Return key."""
        ...

    async def press(self, keys: Sequence[str]) -> None:
        """Presses keys together.

        Raises:
            ToolError: there is no such key.
        """
        ...

    async def settle(self) -> str:
        """Waits until what was done has had its effect, or for a bounded time.

        Returns:
            What the one who acts should know, for example that the program does not answer; mostly nothing.
        """
        ...

    async def close(self) -> None:
        """Gives it back. May be called twice."""
        ...
