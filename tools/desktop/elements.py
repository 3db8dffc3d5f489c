"""Prints the programs' accessibility elements (AT-SPI) as JSON: `{"elements": [...], "whole": bool}`.

    python3 elements.py LIMIT_S

`whole` is false if a program did not answer in time. Runs as a separate process, so that a hanging program or a
crashing library affects nothing else. Exit code 3: the library is not installed.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from typing import Any

MOST = 400
"""Maximum number of elements."""
CHARACTERS = 2000
"""Maximum characters of an element's text."""
PASSIVE = {"panel", "filler", "scroll pane", "viewport", "layered pane", "redundant object", "unknown", "separator",
           "split pane", "application", "internal frame", "root pane", "section", "grouping"}  # fmt: skip
"""Container roles, listed only if they have a name."""


def main() -> None:
    """Prints the elements as JSON."""
    try:
        import gi

        gi.require_version("Atspi", "2.0")
        from gi.repository import Atspi, GLib
    except (ImportError, ValueError) as error:
        print(error, file=sys.stderr)
        sys.exit(3)
    Atspi.set_timeout(500, 1000)
    Atspi.init()
    reader = Reader(Atspi, GLib.Error, time.monotonic() + float(sys.argv[1]))
    for program in reader.children(Atspi.get_desktop(0)):
        for window in reader.children(program):
            reader.walk(window)
    json.dump({"elements": reader.found, "whole": reader.whole}, sys.stdout)


class Reader:
    """Reads trees of elements.

    Args:
        failure: exception of the library if a program exited or does not answer in time.
        end: deadline on the monotonic clock, seconds.
    """

    def __init__(self, atspi: Any, failure: type[Exception], end: float) -> None:
        self._atspi, self._failure, self._end = atspi, failure, end
        self.found: list[dict[str, Any]] = []
        self.whole = True

    def walk(self, node: Any) -> None:
        """Adds a visible element and its descendants, in tree order."""
        if len(self.found) >= MOST:
            return
        if time.monotonic() > self._end:
            self.whole = False
            return
        try:
            states = node.get_state_set()
            if not states.contains(self._atspi.StateType.SHOWING):
                return
            self._add(node, states)
        except self._failure as error:
            self._failed(error)
            return
        for child in self.children(node):
            self.walk(child)

    def _add(self, node: Any, states: Any) -> None:
        kinds = self._atspi.StateType
        box = node.get_extents(self._atspi.CoordType.SCREEN)
        role, name = node.get_role_name(), " ".join((node.get_name() or "").split())
        text = self._text(node)
        if box.width > 0 and box.height > 0 and (role not in PASSIVE or name):
            has = [each for each in ("focused", "checked", "selected", "editable", "expanded")
                   if states.contains(getattr(kinds, each.upper()))]  # fmt: skip
            if not states.contains(kinds.SENSITIVE) and role not in ("label", "frame"):
                has.append("disabled")
            self.found.append({"role": role, "name": name, "text": text, "states": has,
                               "box": [box.x, box.y, box.x + box.width, box.y + box.height]})  # fmt: skip

    def _text(self, node: Any) -> str:
        try:
            if "Text" not in node.get_interfaces():
                return ""
            own = self._atspi.Text
            text: str = own.get_text(node, 0, min(CHARACTERS, own.get_character_count(node)))
            return text
        except self._failure as error:
            self._failed(error)
            return ""

    def children(self, node: Any) -> Iterator[Any]:
        """Yields the children of a node."""
        try:
            count = node.get_child_count()
            self.whole = self.whole and count >= 0  # negative: no answer in time
            for index in range(min(count, MOST)):
                child = node.get_child_at_index(index)
                if child is not None:
                    yield child
        except self._failure as error:
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        print(error, file=sys.stderr)
        self.whole = self.whole and not any(word in str(error) for word in ("receive a reply", "timeout"))


if __name__ == "__main__":
    main()
