"""Long messages of prompts, folded: their beginning and their end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

LONGEST, HEAD, TAIL = 3000, 1500, 500
"""Characters: of a text that is shown whole, and of the beginning and the end of one that is not."""


def folded(text: str) -> str:
    """The text, without its middle if it is long."""
    if len(text) <= LONGEST:
        return text
    return f"{text[:HEAD]}\n[{len(text) - HEAD - TAIL} characters; --whole shows them]\n{text[-TAIL:]}"


def repeated(messages: Sequence[Mapping[str, Any]], opening: Sequence[Mapping[str, Any]]) -> int:
    """How many messages a prompt begins with that `opening` begins with, too."""
    pairs = zip(messages, opening, strict=False)
    return next((k for k, (new, old) in enumerate(pairs) if new != old), min(len(messages), len(opening)))
