"""Terminal output of untrusted text from agents, tools and programs: control characters are escaped."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

_ESCAPED = {
    **{code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\n\t"},  # Unicode control pictures
    0x7F: "\u2421",
    # C1 controls, and bidirectional controls.
    **dict.fromkeys(
        (*range(0x80, 0xA0), 0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)), "\ufffd"
    ),
}


def visible(text: str) -> str:
    """Replaces each character that would control a terminal by a symbol, except line breaks and tabs."""
    return text.translate(_ESCAPED)


class Visible:
    """Renderable with terminal control characters replaced by symbols."""

    def __init__(self, shown: RenderableType) -> None:
        self._shown = shown

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for segment in console.render(self._shown, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)


@dataclass(frozen=True)
class Unwrapped:
    """Renderable without line wrapping: a terminal folds long lines, a file gets them whole."""

    shown: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        yield self.shown
