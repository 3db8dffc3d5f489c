"""Stop strings of a request: the reply that the program gets ends before the first of them.

The engine samples up to the token that completes one. All sampled tokens stay in the record and in the next prompt, the
stop string among them: tokens are never cut, and nothing is rendered again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentrl.proxy.messages import BadRequest


def stop_strings(given: Any, what: str) -> list[str]:
    """The stop strings of a request: a text, a list of texts, or None.

    Raises:
        BadRequest: it is something else, or a text is empty.
    """
    strings = [given] if isinstance(given, str) else given or []
    if not isinstance(strings, list) or not all(isinstance(string, str) and string for string in strings):
        raise BadRequest(f"{what} is {given!r}, not a text or a list of texts, none of them empty")
    return strings


def before_stop(text: str, strings: Sequence[str]) -> tuple[str, str | None]:
    """The text up to the first stop string, and that string; of two that begin at the same place, the longer."""
    found = [(text.find(string), -len(string), string) for string in strings if string in text]
    if not found:
        return text, None
    at, _, string = min(found)
    return text[:at], string
