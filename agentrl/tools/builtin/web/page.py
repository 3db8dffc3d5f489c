"""A page as a model is shown it: its head, a window of its lines, and what happened on the way."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass
class Page:
    """A page that was read.

    Attributes:
        lines: of its tree, or of its text.
        first: of the lines that are shown.
    """

    url: str
    title: str
    lines: list[str]
    first: int = 0

    def window(self, limit: int) -> int:
        """The number of the first line behind those that are shown: as many as `limit` holds, one at least."""
        size = 0
        for number in range(self.first, len(self.lines)):
            size += len(self.lines[number]) + 1
            if size > limit:
                return max(number, self.first + 1)
        return len(self.lines)

    def shown(self, limit: int) -> str:
        """Title, address and lines, with at most about `limit` characters of the lines."""
        last = self.window(limit)
        shown = [line if len(line) <= limit else f"{line[:limit]}…" for line in self.lines[self.first : last]]
        before = [f"[... {self.first} lines above: scroll up]"] if self.first else []
        after = [f"[... {len(self.lines) - last} lines below: scroll down]"] if last < len(self.lines) else []
        empty = [] if self.lines else ["[the page is empty]"]
        return "\n".join(
            [f"page: {self.title}" if self.title else "page:", f"url: {self.url}", *before, *shown, *empty, *after]
        )

    def move(self, lines: int, limit: int) -> bool:
        """Moves the window down (or up, below 0) by one window; whether it could."""
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
        """Equal for equal pages: a hash of the address and the lines, without the ids of elements, which depend on
        what was seen before."""
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
    """Events in words, each once."""
    return list(dict.fromkeys(f"note: {_EVENTS[each['event']](each)}" for each in events if each["event"] in _EVENTS))
