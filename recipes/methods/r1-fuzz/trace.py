"""Branches of functions that read texts, and which of their lines a text runs; runs in a helper process."""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
import textwrap
from collections.abc import Iterator
from types import FrameType
from typing import Any

_LONGEST = 2000  # characters of an input


def found(name: str) -> Any:
    """The function of a name `module:qualified.name`."""
    module, _, path = name.partition(":")
    value: Any = importlib.import_module(module)
    for part in path.split("."):
        value = getattr(value, part)
    return value


def branches(name: str) -> Iterator[list[int]]:
    """Of each branch of a function the lines that lead to it: the first line of every block around it, then its own."""
    source, first = inspect.getsourcelines(found(name))
    function = ast.parse(textwrap.dedent("".join(source))).body[0]

    def below(node: ast.AST, path: list[int]) -> Iterator[list[int]]:
        for field in ("body", "orelse", "handlers", "finalbody"):
            block = getattr(node, field, None)
            if not isinstance(block, list) or not block:
                continue
            inner = path if node is function or field == "finalbody" else [*path, block[0].lineno + first - 1]
            if inner is not path:
                yield inner
            for child in block:
                yield from below(child, inner)

    yield from below(function, [])


def ran(name: str, entry: str, text: str) -> list[int]:
    """The lines of the function `name` that run when the function `entry` reads a text. Its exceptions end the run."""
    code = found(name).__code__
    lines: set[int] = set()

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_code is not code:
            return None
        lines.add(frame.f_lineno)
        return trace

    sys.settrace(trace)
    try:
        found(entry)(text[:_LONGEST])
    except Exception:
        pass
    finally:
        sys.settrace(None)
    return sorted(lines)
