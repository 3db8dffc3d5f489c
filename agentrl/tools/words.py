"""Texts of a model that become arguments of programs, or paths."""

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
"""Type of a tool's argument that goes to a program, a shell or a path: what these cannot take, the model is told."""
