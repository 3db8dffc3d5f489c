"""Separates the thoughts of a reply: text and calls in them do not count, wherever they are in the reply."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

_AGAIN = 4
"""Maximum of times that a reply is parsed again because a call in a thought extends beyond it."""


class SplitReply(NamedTuple):
    """Parts of a reply.

    Attributes:
        thoughts: text of the thoughts, stripped.
        spoken: start and end of each part outside of thoughts, and the calls in it, in order.
        open_at: start of an unclosed thought; None if none.
    """

    thoughts: list[str]
    spoken: list[tuple[int, int, Sequence[Any]]]
    open_at: int | None = None


def apart(
    text: str, find: Callable[[str], Sequence[Any]], calls: Callable[[Any], bool], marks: tuple[str, str]
) -> SplitReply:
    """Splits a reply into its parts. A mark in a call is a part of the call.

    The first thought may begin in the generation prompt: then the reply has only its end. A later unclosed one counts
    only if it contains a call.

    Args:
        find: returns the items of a text, each with `start` and `end`, in order and without overlap.
        calls: returns True if an item is a valid call.
        marks: marks before and behind a thought.
    """
    opening, closing = marks
    found = list(find(text))
    if opening not in text and closing not in text:
        return SplitReply([], [(0, len(text), found)])
    parts = SplitReply([], [])
    at, again = 0, 0
    begin, body = _first(text, found, calls, marks)
    while begin is not None:
        end = text.find(closing, body)
        held = _between(found, begin, len(text) if end < 0 else end)
        if end < 0 and begin and not held:
            break
        parts.spoken.append((at, begin, _between(found, at, begin)))
        if end < 0 or again > _AGAIN:
            parts.thoughts.append(text[body:].strip())
            return parts._replace(open_at=begin)
        parts.thoughts.append(text[body:end].strip())
        at = end + len(closing)
        if held and held[-1].end > at:
            again += 1
            found = list(find(" " * at + text[at:]))
        begin, body = _next(text, found, at, opening)
    parts.spoken.append((at, len(text), _between(found, at, len(text) + 1)))
    return parts


def _first(
    text: str, found: Sequence[Any], calls: Callable[[Any], bool], marks: tuple[str, str]
) -> tuple[int | None, int]:
    """Returns the start of the first thought, mark included, and the start of its content."""
    opening, closing = marks
    if text.lstrip().startswith(opening):
        return 0, text.find(opening) + len(opening)
    end = text.find(closing)
    quoted = any(calls(each) and each.start <= end < each.end for each in found)
    if end >= 0 and not quoted and opening not in text[:end]:
        return 0, 0
    return _next(text, found, 0, opening)


def _next(text: str, found: Sequence[Any], at: int, opening: str) -> tuple[int | None, int]:
    """Returns the next thought that begins outside of all items."""
    begin = text.find(opening, at)
    while begin >= 0:
        before = bisect_left(found, begin + 1, key=lambda each: each.start) - 1
        if before < 0 or found[before].start < at or found[before].end <= begin:
            return begin, begin + len(opening)
        begin = text.find(opening, found[before].end)
    return None, 0


def _between(found: Sequence[Any], begin: int, end: int) -> Sequence[Any]:
    """Returns the items that begin in a part of the text."""
    first, last = (bisect_left(found, at, key=lambda each: each.start) for at in (begin, end))
    return found[first:last]
