"""Symbolic equality of two texts, in a helper process: the module that it imports."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from agentrl.types.errors import needs


def require_maths(_: Mapping[str, Any] = {}) -> None:  # it is not changed
    """Checks that math-verify is installed.

    Raises:
        MissingExtra: it is not.
    """
    with needs("maths"):
        import math_verify  # noqa: F401


def prepare() -> None:
    """Imports the algebra system, which takes a second on a slow machine."""
    compare("1", "1", 6)


def compare(reference: str, answer: str, digits: int) -> str:
    """`equal`, `different` or `no gold`."""
    from math_verify import parse, verify

    wanted = said = None
    # No time limit of its own (None): a limit would swallow the difference between unequal and undecided.
    with suppress(Exception):
        wanted = parse(_delimited(reference), parsing_timeout=None) or parse(reference, parsing_timeout=None)
    with suppress(Exception):  # what an answer makes the parser raise is the answer's fault
        said = parse(answer, parsing_timeout=None) or parse(_delimited(answer), parsing_timeout=None)
    equal = False
    with suppress(Exception):
        equal = bool(wanted and said) and verify(wanted, said, float_rounding=digits, timeout_seconds=None)
    return "no gold" if not wanted else "equal" if equal else "different"


def readable(reference: str) -> bool:
    """Whether it is mathematics."""
    return compare(reference, "", 6) != "no gold"


def _delimited(text: str) -> str:
    r"""Bare LaTeX (`\frac{1}{2}`) is only found between delimiters."""
    return text if "$" in text or "\\boxed" in text or "\\(" in text else f"${text}$"
