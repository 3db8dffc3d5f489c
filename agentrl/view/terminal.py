"""What agents, tools and their programs wrote, on a terminal: it may show no more than text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

_ESCAPED = {
    **{code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\n\t"},  # symbols of their own
    0x7F: "\u2421",
    # The second set of controls, and what turns the direction of a line around.
    **dict.fromkeys(
        (*range(0x80, 0xA0), 0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)), "\ufffd"
    ),
}


def visible(text: str) -> str:
    """The text with a symbol in place of each character that would control a terminal; lines and tabs stay."""
    return text.translate(_ESCAPED)


class Visible:
    """Something to print, with a symbol in place of each such character, wherever in it that is."""

    def __init__(self, shown: RenderableType) -> None:
        self._shown = shown

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for segment in console.render(self._shown, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)


@dataclass(frozen=True)
class Unwrapped:
    """Something to print whose lines are as long as they are: the terminal folds them, and a file has them whole."""

    shown: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        yield self.shown
