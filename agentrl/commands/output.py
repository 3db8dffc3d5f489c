"""What commands put out: text for people, or one JSON document; and on standard error what the library logs."""

from __future__ import annotations

import json
import logging
import math
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.console import Console, RenderableType

from agentrl.view.terminal import Unwrapped, Visible, visible

if TYPE_CHECKING:
    from agentrl.reporters.terminal import Terminal

Json = Annotated[bool, typer.Option("--json", help="One JSON document instead of text (docs/python.md).")]


def write(*parts: RenderableType) -> None:
    """Puts out parts, one below the other, with nothing in them that would control a terminal."""
    write_all(parts)


def write_all(parts: Iterable[RenderableType]) -> None:
    """Puts out parts as they come."""
    console = _standard_output()
    for part in parts:
        console.print(Visible(part), soft_wrap=isinstance(part, Unwrapped), markup=False, highlight=False)


def write_line(text: str) -> None:
    """Puts out a line at once, also into a file or a pipe: others may wait for it."""
    print(visible(text), flush=True)


def write_json(data: Any) -> None:
    """Puts out one document. Structs and dataclasses are objects in it; a number that JSON has not is null."""
    print(json.dumps(_finite(msgspec.to_builtins(data)), indent=1, ensure_ascii=False), flush=True)


def progress(as_json: bool) -> Terminal:
    """The view of what goes on. Standard output is the document's where there is one."""
    from agentrl.reporters.terminal import Terminal

    return Terminal(console=Console(stderr=True)) if as_json else Terminal()


class _ToStandardError(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        kind = "warning" if record.levelno >= logging.WARNING else "note"
        # Looked up now: the live block has put its own stream there, to print above itself.
        print(visible(f"{kind}: {record.getMessage()}"), file=sys.stderr)


def show_log() -> None:
    """From now on, what the library logs is on standard error, a line each."""
    log = logging.getLogger("agentrl")
    log.addHandler(_ToStandardError())
    log.setLevel(logging.INFO)
    log.propagate = False


def _standard_output() -> Console:
    """Where there is no terminal rich takes 80 columns, which would fold the ids."""
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, 140)
    return console


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
