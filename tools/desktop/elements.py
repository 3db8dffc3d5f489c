"""What programs say is on the screen (AT-SPI), as a list of JSON objects on stdout.

    python3 elements.py LIMIT_S

A process of its own: a program that hangs, or a library that crashes, takes nothing else with it. Exit code 3: the
library is not installed.
"""

import json
import sys
import time

MOST = 400
"""Elements at most."""
CHARACTERS = 2000
"""Of the text of one element at most."""
PASSIVE = {"panel", "filler", "scroll pane", "viewport", "layered pane", "redundant object", "unknown", "separator",
           "split pane", "application", "internal frame", "root pane", "section", "grouping"}  # fmt: skip
"""Roles that hold others and have nothing to say themselves."""


def main():
    """Prints the elements."""
    try:
        import gi

        gi.require_version("Atspi", "2.0")
        from gi.repository import Atspi
    except (ImportError, ValueError) as error:
        print(error, file=sys.stderr)
        sys.exit(3)
    end = time.monotonic() + float(sys.argv[1])
    Atspi.set_timeout(500, 1000)
    Atspi.init()
    found = []
    for program in _children(Atspi.get_desktop(0)):
        for window in _children(program):
            _walk(Atspi, window, found, end)
    json.dump(found, sys.stdout)


def _walk(atspi, node, found, end):
    """Adds an element and what is in it, in the order of the tree, if it can be seen."""
    if len(found) >= MOST or time.monotonic() > end:
        return
    try:
        states = node.get_state_set()
        if not states.contains(atspi.StateType.SHOWING):
            return
        box = node.get_extents(atspi.CoordType.SCREEN)
        role, name = node.get_role_name(), " ".join((node.get_name() or "").split())
        text = _text(atspi, node)
        if box.width > 0 and box.height > 0 and (role not in PASSIVE or name):
            has = [each for each in ("focused", "checked", "selected", "editable", "expanded")
                   if states.contains(getattr(atspi.StateType, each.upper()))]  # fmt: skip
            if not states.contains(atspi.StateType.SENSITIVE) and role not in ("label", "frame"):
                has.append("disabled")
            found.append({"role": role, "name": name, "text": text, "states": has,
                          "box": [box.x, box.y, box.x + box.width, box.y + box.height]})  # fmt: skip
    except Exception as error:  # of GLib: the program went away, or does not answer in time
        print(error, file=sys.stderr)
        return
    for child in _children(node):
        _walk(atspi, child, found, end)


def _text(atspi, node):
    try:
        if "Text" not in node.get_interfaces():
            return ""
        return atspi.Text.get_text(node, 0, min(CHARACTERS, atspi.Text.get_character_count(node)))
    except Exception as error:
        print(error, file=sys.stderr)
        return ""


def _children(node):
    try:
        for index in range(min(node.get_child_count(), MOST)):
            child = node.get_child_at_index(index)
            if child is not None:
                yield child
    except Exception as error:
        print(error, file=sys.stderr)


if __name__ == "__main__":
    main()
