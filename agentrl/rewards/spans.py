"""Rewards of parts of a reply: a function marks spans of the text, and credit gives them to the tokens there."""

from __future__ import annotations

import operator
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from agentrl.types.episode import Episode, SpanReward, Turn, begun
from agentrl.types.figures.sums import total

Decode = Callable[[Sequence[int]], str]
"""The text of tokens."""
_OF_A_CHARACTER = 4
"""Maximum number of tokens that make one character: its bytes in UTF-8."""


class Span(NamedTuple):
    """Reward of the characters `start` to `end` (exclusive) of a turn's text, as a reward function gives it."""

    start: int
    end: int
    value: float


class Spanned(float):
    """Value of a turn that is the sum of its spans."""

    spans: tuple[SpanReward, ...]

    def __new__(cls, spans: Sequence[SpanReward]) -> Spanned:
        made = super().__new__(cls, total(span.value for span in spans))
        made.spans = tuple(spans)
        return made

    def mapped(self, change: Callable[[float], float]) -> Spanned:
        """Returns the value with every span's reward changed."""
        return Spanned([msgspec.structs.replace(span, value=change(span.value)) for span in self.spans])


def placed(component: str, spans: Sequence[Span], episode: Episode, turn: Turn, decode: Decode | None) -> Spanned:
    """Checks spans, and finds their tokens, in a time that grows with the number of tokens and of spans.

    Args:
        decode: None where no tokenizer is at hand: the tokens stay unknown.

    Raises:
        ValueError: a place is no whole number, or a span is empty or outside of the text.
    """
    sampled = bool(episode.nodes) and episode.trained(turn) > 0
    if decode is None or not sampled or not spans:
        return Spanned([_placed(component, span, len(turn.text), (), 0) for span in spans])
    given = begun(episode.nodes, turn.node)
    ends = ends_of([*given, *episode.nodes[turn.node].token_ids], decode)
    return Spanned([_placed(component, span, len(turn.text), ends, len(given)) for span in spans])


def _placed(component: str, span: Span, size: int, ends: Sequence[int], given: int) -> SpanReward:
    """Checks one span. The tokens of `ends` after the first `given` are the policy's: others can have no credit."""
    start, end = _whole(span.start), _whole(span.end)
    if not 0 <= start < end <= size:
        raise ValueError(f"the span {start} to {end} of a text of {size} characters")
    if not ends:
        return SpanReward(component, start, end, span.value)
    newest = len(ends) - 1
    last = min(bisect_left(ends, end), newest) - given
    if last < 0:
        return SpanReward(component, start, end, span.value, first=0)
    # The first token that has its first character, or begins where the text before it ends.
    first = min(bisect_right(ends, start), bisect_left(ends, start) + 1 if start else 0, newest)
    return SpanReward(component, start, end, span.value, first=max(first - given, 0), last=last)


def _whole(place: Any) -> int:
    """Converts an index, of NumPy for example, to an int that a record can hold."""
    try:
        return int(operator.index(place))
    except TypeError:
        raise ValueError(f"a span with the place {place!r} ({type(place).__name__}), not a whole number") from None


def ends_of(ids: Sequence[int], decode: Decode) -> list[int]:
    """The number of whole characters of the text up to and including each token.

    Each token is decoded with the one before it: a tokenizer may drop the space that the first one begins with. Tokens
    that hold parts of one character (which end with U+FFFD) are decoded together.
    """
    ends, counted, begin, read, known = list[int](), 0, 0, 0, 0
    for end in range(1, len(ids) + 1):
        text = decode(ids[begin:end])
        whole = len(text.rstrip("\ufffd"))
        if end == len(ids) or end - read == _OF_A_CHARACTER:
            whole = len(text)  # no more of it comes
        ends.append(max(ends[-1] if ends else 0, counted + whole - known))
        if whole == len(text):
            counted += whole - known
            begin, read = read, end
            known = len(decode(ids[begin:read]))
    return ends


def recorded(turn: Turn, component: str) -> float | None:
    """Returns the recorded value of a component for a turn, with its spans if it has any."""
    spans = [span for span in turn.spans if span.component == component]
    return Spanned(spans) if spans else turn.rewards.get(component)
