"""Screen interface of the `gui` tool: pixels, elements, mouse and keyboard."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from agentrl.types.errors import InfraError, ToolServerEnded

Button = Literal["left", "middle", "right"]
Direction = Literal["up", "down", "left", "right"]
Point = tuple[int, int]


class ScreenLost(InfraError):
    """A screen is broken or does not answer. Infrastructure failure: the episode is retried on another screen."""


class ScreenEnded(ScreenLost, ToolServerEnded):
    """A screen broke while the model acted on it. What it did to its program may be the reason."""


@dataclass(frozen=True)
class Element:
    """Element of the screen with a name or an action.

    Attributes:
        role: `push button`, `menu item`, `text`, ...
        name: label.
        text: text content.
        states: `focused`, `checked`, `selected`, `editable`, `expanded`, `disabled`.
        box: left, top, right, bottom; pixels of the screen.
    """

    role: str
    name: str
    text: str
    states: tuple[str, ...]
    box: tuple[int, int, int, int]


class Screen(Protocol):
    """Screen with mouse and keyboard. Points are pixels on the screen.

    All methods raise ScreenLost if the screen is broken.

    Attributes:
        size: width and height, pixels.
    """

    size: tuple[int, int]

    async def screenshot(self) -> bytes:
        """Returns the current screen as PNG bytes, of `size`."""
        ...

    async def elements(self) -> tuple[list[Element], bool]:
        """Returns the elements from top to bottom, and False if the list is incomplete (a program timed out)."""
        ...

    async def move(self, to: Point) -> None:
        """Moves the pointer."""
        ...

    async def click(self, at: Point, button: Button = "left", times: int = 1) -> None:
        """Clicks `times` times."""
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
            ToolError: the key is unknown.
        """
        ...

    async def settle(self) -> str:
        """Waits for the effect of the last action, for a limited time.

        Returns:
            A note for the agent, for example that the program does not answer; usually empty.
        """
        ...

    async def close(self) -> None:
        """Releases the screen. May be called twice."""
        ...
