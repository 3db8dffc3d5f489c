"""Text view of a page for the model: header, a window of its lines, and notes on events."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass
class BrowserPage:
    """Page as lines of text.

    Attributes:
        lines: lines of the accessibility tree or of the text.
        first: index of the first shown line.
    """

    url: str
    title: str
    lines: list[str]
    first: int = 0

    def window(self, limit: int) -> int:
        """Returns the index after the last shown line: as many as fit into `limit` characters, at least one."""
        size = 0
        for number in range(self.first, len(self.lines)):
            size += len(self.lines[number]) + 1
            if size > limit:
                return max(number, self.first + 1)
        return len(self.lines)

    def shown(self, limit: int) -> str:
        """Formats title, address and lines, with about `limit` characters of lines."""
        last = self.window(limit)
        shown = [line if len(line) <= limit else f"{line[:limit]}…" for line in self.lines[self.first : last]]
        before = [f"[... {self.first} lines above: scroll up]"] if self.first else []
        after = [f"[... {len(self.lines) - last} lines below: scroll down]"] if last < len(self.lines) else []
        empty = [] if self.lines else ["[the page is empty]"]
        return "\n".join(
            [f"page: {self.title}" if self.title else "page:", f"url: {self.url}", *before, *shown, *empty, *after]
        )

    def move(self, lines: int, limit: int) -> bool:
        """Moves the window down, or up if `lines` is below 0, by one window. Returns True if it moved."""
        before = self.first
        if lines > 0:
            last = self.window(limit)
            self.first = last if last < len(self.lines) else self.first
        else:
            size = 0
            while self.first and size <= limit:
                self.first -= 1
                size += len(self.lines[self.first]) + 1
        return self.first != before

    def key(self) -> str:
        """Returns a hash of the address and the lines, without element ids, which depend on earlier pages."""
        lines = [re.sub(r"^( *)\[\d+\] ", r"\1", line) for line in self.lines]
        return hashlib.sha256("\n".join([self.url, *lines]).encode()).hexdigest()[:16]


_EVENTS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "tab": lambda e: f"tab {e['index']} was opened, and is shown",
    "tab_refused": lambda e: "a further tab was not opened: too many are open",
    "dialog": lambda e: (
        f"the page showed a dialog ({e['type']}): {e['text']!r}; it was {'accepted' if e['accepted'] else 'dismissed'}"
    ),
    "download": lambda e: f"the download of {e['file']!r} was cancelled",
    "filechooser": lambda e: "the page asked for a file; none was chosen",
    "blocked": lambda e: f"{e['host']} may not be reached from here; the request was aborted",
    "crash": lambda e: "the page crashed; its tab is empty now",
    "hang": lambda e: f"the page hung; {e['page']}",
    "still_loading": lambda e: "the page had not loaded in time; loading was stopped",
    "more": lambda e: f"{e['count']} more of the kind",
}


def told(events: Iterable[Mapping[str, Any]]) -> list[str]:
    """Formats events as notes, without duplicates."""
    return list(dict.fromkeys(f"note: {_EVENTS[each['event']](each)}" for each in events if each["event"] in _EVENTS))
