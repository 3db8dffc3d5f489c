"""Rewards of parts of a reply: a function marks spans of the text, and credit gives them to the tokens there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from agentrl.types.episode import Episode, SpanReward, Turn
from agentrl.types.figures.sums import total

Decode = Callable[[Sequence[int]], str]
"""The text of tokens."""


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
    """Checks spans, and finds their tokens.

    Args:
        decode: None where no tokenizer is at hand: the tokens stay unknown.

    Raises:
        ValueError: a span is empty or outside of the text.
    """
    for start, end, _ in spans:
        if not 0 <= start < end <= len(turn.text):
            raise ValueError(f"the span {start} to {end} of a text of {len(turn.text)} characters")
    ids = episode.nodes[turn.node].token_ids if episode.trained(turn) else []
    return Spanned(
        [
            SpanReward(
                component, start, end, value, first=_reaching(ids, start + 1, decode), last=_reaching(ids, end, decode)
            )
            for start, end, value in spans
        ]
    )


def recorded(turn: Turn, component: str) -> float | None:
    """Returns the recorded value of a component for a turn, with its spans if it has any."""
    spans = [span for span in turn.spans if span.component == component]
    return Spanned(spans) if spans else turn.rewards.get(component)


def _reaching(ids: Sequence[int], characters: int, decode: Decode | None) -> int:
    """The first token with which the text has so many characters, by bisection; the last if none has; -1: no tokens."""
    if decode is None:
        return -1
    low, high = 0, len(ids) - 1
    while low < high:
        middle = (low + high) // 2
        if len(decode(ids[: middle + 1])) >= characters:
            high = middle
        else:
            low = middle + 1
    return high
