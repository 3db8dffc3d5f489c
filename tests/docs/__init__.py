"""The pages of the documentation, executed."""

from __future__ import annotations


def lines_of(text: str) -> int:
    """How many lines are neither blank nor a comment."""
    return sum(bool(line.strip()) and not line.strip().startswith("#") for line in text.splitlines())
