"""Summarises reward notes, so that the reasons of missing rewards can be counted."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from agentrl.types.episode import Episode

SHOWN = 3
"""Number of kinds of notes in metrics and summaries, the most frequent ones."""

_LONGEST = 48  # characters of a kind
_ORDINAL = re.compile(r"^(?:test|check|turn) \d+: ")


def kinds_of(episode: Episode) -> list[str]:
    """Returns `COMPONENT: KIND` for each note on a value of 0 or below, or on None. The kind is the note's beginning.

    Of `test 3: timeout: 1 passed` that is `timeout`. Numbers are written as #, so that equal reasons are equal.
    """
    kinds = []
    for name, note in episode.notes.items():
        values = [turn.rewards.get(name) for turn in episode.own_turns]
        value = episode.components[name] if name in episode.components else max(filter(None, values), default=None)
        if value is None or value <= 0:
            kinds.append(f"{name}: {kind_of(str(note))}")  # an earlier run may have stored another type
    return kinds


def kind_of(note: str) -> str:
    """Returns the beginning of a note, without parts that differ from one episode to the next."""
    first = re.split(r"[:;,\n]", _ORDINAL.sub("", note.strip()), maxsplit=1)[0]
    return re.sub(r"\d+(?:\.\d+)?", "#", " ".join(first.split()))[:_LONGEST]


def most_frequent(kinds: Iterable[str], most: int = SHOWN) -> dict[str, int]:
    """Returns the most frequent kinds with their counts; ties in the order of the names."""
    counted = Counter(kinds)
    return dict(sorted(counted.items(), key=lambda item: (-item[1], item[0]))[:most])
