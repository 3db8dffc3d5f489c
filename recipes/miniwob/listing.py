"""What the policy reads of a page: `dom`, a line for each visible element, or `compact`, for tiny policies."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

Line = Sequence[Any]
"""Of `page.js`: depth, number (0: a text between elements), tag, id, classes, text, [x, y, width, height], traits."""


def full(state: dict[str, Any]) -> str:
    """The instruction, and a line for each visible element: number, what it is, text, place, size, traits."""
    return "\n".join([state["utterance"], *map(_line, state["lines"])])


def _line(line: Line) -> str:
    depth, number, tag, name, classes, text, (x, y, width, height), traits = line
    what = tag + (f"#{name}" if name else "") + (f".{classes}" if classes else "") if number else "text"
    words = [f"[{number}]"] if number else []
    words += [what, *([json.dumps(text, ensure_ascii=False)] if text else []), f"@{x},{y} {width}x{height}"]
    words += [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in traits.items()]
    return " " * depth + " ".join(words)


ACTABLE = {"button", "input", "textarea", "select", "a", "label"}


def compact(state: dict[str, Any]) -> str:
    """The instruction, and a short line for each element that shows a text or takes input: number, tag, text."""
    lines = [state["utterance"]]
    for _, number, tag, _, _, text, _, traits in state["lines"]:
        if number and (text or tag in ACTABLE):
            kind = traits.get("type", tag) if tag == "input" else tag
            value = traits.get("value") or ("x" if "checked" in traits else "")
            lines.append(" ".join(filter(None, [str(number), kind, text, value])))
    return "\n".join(lines)


def key(state: dict[str, Any]) -> str:
    """A hash of what can be seen: equal for equal pages, whatever their elements are numbered."""
    seen = [state["utterance"], [[*line[:1], *line[2:]] for line in state["lines"]]]
    return hashlib.sha256(json.dumps(seen, sort_keys=True).encode()).hexdigest()[:16]
