"""What commands put out: text for people, or one JSON document."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console, RenderableType

from agentrl.view.terminal import Unwrapped, Visible

Json = Annotated[bool, typer.Option("--json", help="One JSON document instead of text (docs/python.md).")]


def write(*parts: RenderableType, console: Console | None = None) -> None:
    """Puts out parts, one below the other, with nothing in them that would control a terminal."""
    out = console or _standard_output()
    for part in parts:
        out.print(Visible(part), soft_wrap=isinstance(part, Unwrapped | str))


def write_all(parts: Iterable[RenderableType]) -> None:
    """Puts out parts as they come."""
    out = _standard_output()
    for part in parts:
        write(part, console=out)


def write_json(data: Any) -> None:
    """Puts out one document. Structs are objects in it; a number that JSON has not is null."""
    sys.stdout.write(json.dumps(_finite(msgspec.to_builtins(data)), indent=1, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def _standard_output() -> Console:
    """Where there is no terminal rich takes 80 columns, which would fold the ids."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = max(console.width, 140)
    return console
