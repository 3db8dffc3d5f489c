"""Argument type for model text passed to programs, shells or paths."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator


def _passable(text: str) -> str:
    if "\0" in text:
        raise ValueError("it cannot hold a NUL character")
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise ValueError("it holds half of a surrogate pair, which is no character") from None
    return text


Word = Annotated[str, AfterValidator(_passable)]
"""Tool argument passed to a program, a shell or a path; characters that these reject are a tool error."""
