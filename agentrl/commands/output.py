"""Output of commands: text for people, or one JSON document; log messages go to standard error."""

from __future__ import annotations

import json
import logging
import math
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console, RenderableType

from agentrl.types.reporter import Reporter, working_for
from agentrl.view.terminal import Unwrapped, Visible, visible

_STDOUT, _STDERR = 1, 2
_kept: list[int] = []  # standard output, while it is reserved for the document


def _keep_standard_output(as_json: bool) -> bool:
    """Redirects standard output to standard error from now on, for user code and child processes too."""
    if as_json:
        sys.stdout.flush()
        _kept.append(os.dup(_STDOUT))
        os.dup2(_STDERR, _STDOUT)
    return as_json


Json = Annotated[
    bool,
    typer.Option("--json", callback=_keep_standard_output, help="One JSON document instead of text (docs/python.md)."),
]
"""The option of every command that prints. With it, only `write_json` writes to standard output."""


def write(*parts: RenderableType) -> None:
    """Prints parts, one below the other, with nothing in them that would control a terminal."""
    write_all(parts)


def write_all(parts: Iterable[RenderableType]) -> None:
    """Prints parts as they come."""
    console = _standard_output()
    for part in parts:
        console.print(Visible(part), soft_wrap=isinstance(part, Unwrapped), markup=False, highlight=False)


def write_line(text: str) -> None:
    """Prints a line at once, also into a file or a pipe: others may wait for it."""
    print(visible(text), flush=True)


def write_json(data: Any) -> None:
    """Prints one document. Structs and dataclasses become objects, paths strings, non-finite numbers null. It is ASCII:
    it contains no terminal control characters."""
    document = json.dumps(_finite(msgspec.to_builtins(data, enc_hook=_plain)), indent=1)
    restore_standard_output()
    print(document, flush=True)


def restore_standard_output() -> None:
    """Restores standard output for the document, or for a command that replaces this one."""
    while _kept:
        sys.stdout.flush()
        os.dup2(_kept[-1], _STDOUT)
        os.close(_kept.pop())


class _ToStandardError(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        kind = "warning" if record.levelno >= logging.WARNING else "note"
        # Looked up at print time: the live block replaces the stream, to print above itself.
        print(visible(f"{kind}: {record.getMessage()}"), file=sys.stderr)


@contextmanager
def progress() -> Iterator[Reporter]:
    """Shows on standard error how far a command is, once it has taken 2 s: a bar with its rate and the time left; in a
    pipe a line every 10 s."""
    from agentrl.reporters.terminal import SLOW_S, Terminal

    shown = Terminal(console=Console(stderr=True), after_s=SLOW_S)
    try:
        with working_for(shown):
            yield shown
    finally:
        shown.ended(None)


def is_terminal() -> bool:
    """Returns True if standard output is a terminal."""
    return sys.stdout.isatty()


def show_log() -> None:
    """Prints the library's log messages to standard error from now on, one line each."""
    log = logging.getLogger("agentrl")
    log.addHandler(_ToStandardError())
    log.setLevel(logging.INFO)
    log.propagate = False


def _standard_output() -> Console:
    """Returns a console of at least 140 columns without a terminal: rich's 80 would fold the ids."""
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, 140)
    return console


def _plain(value: Any) -> Any:
    """Converts a value that msgspec cannot encode, e.g. a NumPy float to a float."""
    if isinstance(value, float):
        return float(value)
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"no JSON is known for {type(value)}")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
